"""How the global batch of a running `fit` is made larger."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfdist import _keras
from tfdist.callbacks.global_batch import step_rows
from tfdist.data import ramp_of
from tfdist.data import steps_of


def split_batch(rows: int, mode: str, first: tuple[int, int], max_step_rows: int | None) -> tuple[int, int]:
    """The rows of a step, and the steps of an update, that come nearest to the rows of an update without exceeding them.

    Args:
        rows: The rows wanted.
        mode: "data": as many rows a step as may be; "accumulate": the rows of a step stay.
        first: The rows of a step, and the steps of an update, at the start.
        max_step_rows: The most rows of a step; None for any.

    Example:
        >>> split_batch(96, "data", (32, 1), None), split_batch(96, "data", (32, 1), 40)
        ((96, 1), (32, 3))
        >>> split_batch(100, "accumulate", (32, 1), None)
        (32, 3)
    """
    step_rows, steps = first
    if mode == "accumulate":
        return step_rows, max(1, rows // step_rows)
    if max_step_rows is not None:
        steps = max(steps, math.ceil(rows / max(max_step_rows, step_rows)))
    return rows // steps, steps


class BatchControl:
    """The batch of the `fit` that is running.

    Args:
        optimizer: The model's.
        mode: "data" or "accumulate"; see `split_batch`.
        max_step_rows: The most rows of a step.

    Raises:
        ValueError: If the batch cannot be changed in this way.
    """

    def __init__(self, optimizer: Any, mode: str, max_step_rows: int | None) -> None:
        self._mode, self._max_step_rows = mode, max_step_rows
        data = _keras.fit_data()
        self._dataset = data.x if isinstance(data.x, tf.data.Dataset) else None
        self._ramp = ramp_of(data.x) if self._dataset is not None else None
        self._accumulation = _keras.accumulating(optimizer)
        if mode == "data" and (self._ramp is None or data.has_steps):
            raise ValueError(
                "For larger batches from the data, give `fit` a dataset of tfdist.data.rampable, and no `steps_per_epoch`, so that "
                f'batches change where an epoch begins; or use mode="accumulate". Received: {type(data.x).__name__}, '
                f"{'a' if data.has_steps else 'no'} `steps_per_epoch`."
            )
        if self._accumulation is None and (mode == "accumulate" or max_step_rows is not None):
            raise ValueError(
                "To add up gradients of several batches, use an optimizer of tfdist.optimizers.GradientAccumulation(optimizer, 1), "
                f"whose number of batches can change. Received: {type(optimizer).__name__}."
            )
        first = self._ramp.first if self._ramp is not None else step_rows()
        if first is None:
            raise ValueError("The batch size of this dataset cannot be seen: use tfdist.data.rampable. Received: an unknown size.")
        _, steps = _keras.batches_of_update(optimizer)
        self._first = first, self._accumulation.first_steps if self._accumulation is not None else steps
        self.first_rows = self.rows = math.prod(self._first)

    def set(self, rows: int) -> None:
        """Sets the rows of an update, or those that come nearest below."""
        each, steps = split_batch(rows, self._mode, self._first, self._max_step_rows)
        self.rows = each * steps
        if self._accumulation is not None:
            self._accumulation.steps.assign(steps)
        if self._mode == "data" and self._ramp is not None:
            self._ramp.size.assign(each)

    def begin_epoch(self) -> None:
        """Tells Keras how many steps the epoch has that begins."""
        if self._mode == "data":
            _keras.set_steps(steps_of(self._dataset))
