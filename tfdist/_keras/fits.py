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
    # Callbacks that resume training tell Keras 3 by this attribute.
    initial = getattr(arguments["self"], "_initial_epoch", None) or arguments.get("initial_epoch") or 0
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
