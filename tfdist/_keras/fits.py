"""What callbacks ask of the `fit` that runs them."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfdist._keras.calls import current_call
from tfdist._keras.calls import KERAS_3

_DEFAULT_BATCH_SIZE = 32


class FitData(NamedTuple):
    """What `fit` was given to train on."""

    x: Any
    batch_size: int | None
    """The rows of a batch, where they were given, or can be seen without looking into a dataset."""
    has_steps: bool
    """Whether the user said how many steps an epoch has."""
    initial_epoch: int


def fit_data() -> FitData:
    """What the `fit` that is running was given.

    Raises:
        RuntimeError: If none is.
    """
    arguments = _fit_arguments()
    x = arguments.get("x")
    model = arguments["self"]
    # By these, callbacks that resume training tell Keras 3 and Keras 2.
    initial = getattr(model, "_initial_epoch", None) or getattr(getattr(model, "_training_state", None), "_epoch", None)
    initial = initial or arguments.get("initial_epoch") or 0
    return FitData(x, _batch_size(x, arguments.get("batch_size")), bool(arguments.get("steps_per_epoch")), int(initial))


def set_steps(steps: int | None) -> None:
    """Tells the `fit` that is running, and its callbacks, how many steps the epoch has that begins; None if that is not known."""
    arguments = _fit_arguments()
    if KERAS_3:
        arguments["epoch_iterator"]._num_batches = steps
    else:
        arguments["data_handler"]._inferred_steps = steps
    for callback in arguments["callbacks"].callbacks:
        if getattr(callback, "params", None) is not None:
            callback.params["steps"] = steps
        if hasattr(callback, "target"):  # the progress bar
            callback.target = steps


def fit_callbacks() -> list[Any]:
    """The callbacks of the `fit` that is running, also those that Keras has added."""
    return list(_fit_arguments()["callbacks"].callbacks)


def iterators_made(epoch_has_begun: bool) -> int:
    """How often the data were begun to be read for the epochs that are over; each time a dataset is shuffled anew.

    Args:
        epoch_has_begun: Whether the next epoch has begun, for which Keras 2 has an iterator then.
    """
    made = int(getattr(_dataset(_fit_arguments()), "iterators_made", 0))
    return made if KERAS_3 or not epoch_has_begun else made - 1


def data_position() -> Any:
    """Where the running epoch's iterator is; None if its dataset cannot tell."""
    iterator = _fit_arguments().get("iterator")
    if not hasattr(iterator, "position"):
        return None
    try:
        return iterator, iterator.position()
    except (tf.errors.FailedPreconditionError, tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
        return None


def go_back(position: Any) -> bool:
    """Moves the running epoch's iterator to a place that `data_position` returned.

    Returns:
        Whether it could be: the place may be none, or one of an epoch that is over.
    """
    if position is None or position[0] is not _fit_arguments().get("iterator"):
        return False
    iterator, place = position
    iterator.go_back(place)
    return True


def go_on(epoch: int, iterators: int) -> None:
    """Lets the `fit` that begins go on with an epoch, and its dataset be shuffled as if the epochs before had been read.

    Args:
        epoch: The epoch.
        iterators: What `iterators_made` was.
    """
    arguments = _fit_arguments()
    dataset = _dataset(arguments)
    if KERAS_3:
        arguments["self"]._initial_epoch = epoch
    else:
        handler = arguments["data_handler"]
        arguments["self"]._training_state = _InitialEpoch(epoch)
        if not handler._adapter.should_recreate_iterator():
            handler._dataset = dataset.skip((epoch - handler._initial_epoch) * handler._inferred_steps)
            return
        iterators -= 1  # one more is made before the first epoch's
    for _ in range(iterators - int(getattr(dataset, "iterators_made", iterators))):
        iter(dataset)


def go_on_as_told(model: Any) -> None:
    """Lets the next `fit` begin where it is told to."""
    if KERAS_3:
        model._initial_epoch = None
    else:
        model._training_state = None


class _InitialEpoch:
    """What Keras 2 asks, once training has begun, for the epoch to begin with."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        del args, kwargs
        return self._epoch, 0


def _dataset(arguments: Any) -> Any:
    return arguments["epoch_iterator"]._distributed_dataset if KERAS_3 else arguments["data_handler"]._dataset


def _fit_arguments() -> Any:
    call = current_call()
    if call is None or call.method != "fit":
        raise RuntimeError("This callback works inside `fit` only. Received: a call from elsewhere.")
    return call.arguments


def _batch_size(x: Any, given: int | None) -> int | None:
    if any("PyDataset" in cls.__name__ or cls.__name__ == "Sequence" for cls in type(x).__mro__):
        return int(tf.nest.flatten(x[0])[0].shape[0])
    if isinstance(x, tf.data.Dataset | tf.distribute.DistributedDataset) or hasattr(x, "__next__"):
        return None
    return int(given or _DEFAULT_BATCH_SIZE)
