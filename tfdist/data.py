"""What is asked of a user's dataset, and datasets whose batch size can change."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfdist import _extended

_ONE_TO_ONE = ("MapDataset", "ParallelMapDataset", "PrefetchDataset", "OptionsDataset")


def rampable(dataset: tf.data.Dataset, batch_size: int) -> tf.data.Dataset:
    """Batches rows by a size that `BatchSizeRamp` may change from epoch to epoch.

    Shuffle before it; `map` and `prefetch` may follow. The last batch of an epoch may be smaller.

    Args:
        dataset: Its elements are rows.
        batch_size: The first global batch size, 1 or more.

    Returns:
        The dataset of batches.

    Raises:
        ValueError: If the batch size is no whole number of 1 or more.

    Example:
        >>> batches = rampable(tf.data.Dataset.range(8), 2)
        >>> [len(batch) for batch in batches]
        [2, 2, 2, 2]
        >>> _ = ramp_of(batches).size.assign(5)
        >>> [len(batch) for batch in batches]
        [5, 3]
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a whole number of rows, 1 or more. Received: batch_size={batch_size!r}.")
    size = _extended.host_variable(batch_size, tf.int64)
    batches = dataset.group_by_window(
        key_func=lambda *row: tf.zeros([], tf.int64),
        reduce_func=lambda key, window: window.batch(size),
        window_size_func=lambda key: size.read_value(),
    )
    batches.tfdist_ramp = Ramp(size, batch_size, int(dataset.cardinality()))
    return batches


class Ramp(NamedTuple):
    """The batch size of a rampable dataset."""

    size: Any
    """The variable."""

    first: int
    """The first size."""

    rows: int
    """The rows of an epoch; below 0 if that is not known."""

    @property
    def steps(self) -> int | None:
        """The batches of an epoch."""
        return -(-self.rows // int(self.size.numpy())) if self.rows >= 0 else None


def ramp_of(dataset: Any) -> Ramp | None:
    """What `rampable` made changeable of a dataset, or of what it was made from, else None."""
    ramps = (getattr(inner, "tfdist_ramp", None) for inner in _inputs(dataset))
    return next((ramp for ramp in ramps if ramp is not None), None)


def steps_of(dataset: Any) -> int | None:
    """The batches in an epoch of a rampable dataset, where they can be counted, else None."""
    for inner in _inputs(dataset):
        if hasattr(inner, "tfdist_ramp"):
            steps: int | None = inner.tfdist_ramp.steps
            return steps
        if not any(name in type(inner).__name__ for name in _ONE_TO_ONE):
            return None
    return None


def static_batch_size(dataset: Any) -> int | None:
    """The global batch size that a dataset was batched with, where it can be seen, else None."""
    ramp = ramp_of(dataset)
    if ramp is not None:
        return int(ramp.size.numpy())
    for spec in tf.nest.flatten(dataset.element_spec):
        shape = getattr(spec, "shape", None)
        if shape is not None and shape.rank and shape[0] is not None:
            return int(shape[0])
    sizes = (getattr(inner, "_batch_size", None) for inner in _inputs(dataset))
    return next((int(size) for size in sizes if size is not None), None)


def unseeded_shuffle(dataset: Any) -> bool:
    """Whether a dataset shuffles by a seed that differs between processes."""
    for inner in _inputs(dataset):
        seeds = [getattr(inner, name) for name in ("_seed", "_seed2") if hasattr(inner, name)]
        if "Shuffle" in type(inner).__name__ and seeds and not any(int(seed) for seed in seeds):
            return True
    return False


def _inputs(dataset: Any) -> list[Any]:
    """The dataset and those it was made from, the last transformation first."""
    found = [dataset]
    for inner in found:
        found.extend(getattr(inner, "_inputs", list)())
    return found
