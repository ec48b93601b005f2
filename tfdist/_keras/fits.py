"""What callbacks ask of the `fit` that runs them."""

from __future__ import annotations

import itertools
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


def steps_of_execution() -> tuple[int, bool | None]:
    """How many steps the running `fit` takes at once now, and whether the epoch ends with them; None if that is not known.

    `train_on_batch` is an epoch of one step.
    """
    call = current_call()
    if call is not None and call.method == "train_on_batch":
        return 1, True
    arguments = _fit_arguments()
    if KERAS_3:
        iterator, first, last = arguments["epoch_iterator"], arguments["begin_step"], arguments["end_step"]
        # What it counts itself, where the length is not known, is one too many.
        steps = iterator.steps_per_epoch or iterator.data_adapter.num_batches
    else:
        handler = arguments["data_handler"]
        steps, first = handler.inferred_steps, arguments["step"]
        last = first + handler.step_increment
    if not steps:
        return last - first + 1, None
    return min(last + 1, steps) - first, last + 1 >= steps


def fit_callbacks() -> list[Any]:
    """The callbacks of the `fit` that is running, also those that Keras has added."""
    return list(_fit_arguments()["callbacks"].callbacks)


class Place(NamedTuple):
    """Where the running `fit` is, for another one to go on from."""

    epoch: int
    step: int
    """How many steps of the epoch are over."""
    iterators: int
    """How often the data were begun to be read before; each time a dataset is shuffled anew."""
    read: int
    """How many batches have been read since."""


def place_between(epoch: int, *, has_begun: bool) -> Place:
    """The place before the first step of an epoch.

    Args:
        epoch: The epoch.
        has_begun: Whether callbacks were told that it begins; Keras 2 has its iterator then.
    """
    arguments = _fit_arguments()
    made = _iterators_made(arguments)
    if KERAS_3 and _goes_on_reading(arguments):
        return Place(epoch, 0, made - 1, arguments["epoch_iterator"]._steps_seen)
    return Place(epoch, 0, made if KERAS_3 or not has_begun else made - 1, 0)


def place_within(epoch: int, step: int) -> Place:
    """The place before a step that is about to begin."""
    arguments = _fit_arguments()
    read = step
    if KERAS_3 and _goes_on_reading(arguments):
        iterator = arguments["epoch_iterator"]
        read = iterator._steps_seen - iterator.steps_per_execution
    return Place(epoch, step, _iterators_made(arguments) - 1, read)


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


def go_on(place: Place) -> None:
    """Lets the `fit` that begins go on from a place, with its dataset shuffled as it was; `read_on` is left to be called."""
    arguments = _fit_arguments()
    dataset, iterators = _dataset(arguments), place.iterators
    if KERAS_3:
        arguments["self"]._initial_epoch = place.epoch
        if place.step or place.read:
            _leave_out_steps(arguments["epoch_iterator"], place)
    else:
        handler = arguments["data_handler"]
        arguments["self"]._training_state = _InitialPlace(place)
        if not handler._adapter.should_recreate_iterator():
            handler._dataset = dataset.skip((place.epoch - handler._initial_epoch) * handler._inferred_steps)
            return
        iterators -= 1  # one more is made before the first epoch's
    for _ in range(iterators - _iterators_made(arguments, iterators)):
        iter(dataset)


def read_on(place: Place) -> None:
    """Leaves out the batches that were read before a place; called before the first step of a `fit` that goes on from there."""
    iterator = _fit_arguments()["iterator"]
    for _ in range(place.read):
        next(iterator)


def _leave_out_steps(epoch_iterator: Any, place: Place) -> None:
    """Lets an iterator of Keras 3 begin its first epoch at a step."""
    original = epoch_iterator._enumerate_iterator

    def enumerate_rest() -> Any:
        del epoch_iterator._enumerate_iterator
        steps = itertools.dropwhile(lambda step: step[0] < place.step, original())
        for number, step in enumerate(steps):
            if number == 0:
                epoch_iterator._steps_seen += place.read - place.step
            yield step

    epoch_iterator._enumerate_iterator = enumerate_rest


def go_on_as_told(model: Any) -> None:
    """Lets the next `fit` begin where it is told to."""
    if KERAS_3:
        model._initial_epoch = None
    else:
        model._training_state = None


class _InitialPlace:
    """What Keras 2 asks, once training has begun, for the epoch and the step to begin with."""

    def __init__(self, place: Place) -> None:
        self._epoch, self._step = place.epoch, place.step

    def maybe_load_initial_counters_from_ckpt(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        del args, kwargs
        return self._epoch, self._step


def _dataset(arguments: Any) -> Any:
    return arguments["epoch_iterator"]._distributed_dataset if KERAS_3 else arguments["data_handler"]._dataset


def _iterators_made(arguments: Any, unknown: int = 0) -> int:
    return int(getattr(_dataset(arguments), "iterators_made", unknown))


def _goes_on_reading(arguments: Any) -> bool:
    """Whether Keras 3 reads on where an epoch ends, since the user has said how many steps one has."""
    iterator = arguments["epoch_iterator"]
    return bool(iterator.steps_per_epoch) and iterator._current_iterator is not None


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
