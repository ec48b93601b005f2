"""The batch that all replicas train on together."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist import _keras
from tfdist.data import static_batch_size


def step_rows() -> int | None:
    """The rows of a step of the `fit` that is running, where they can be seen, else None."""
    data = _keras.fit_data()
    return static_batch_size(data.x) if isinstance(data.x, tf.data.Dataset) else data.batch_size


def update_rows(optimizer: Any, rows: int) -> int:
    """The rows of an update: those of all steps whose gradients are added up."""
    _, batches = _keras.batches_of_update(optimizer)
    return rows * batches
