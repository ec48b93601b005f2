"""How long a step takes."""

from __future__ import annotations

import statistics
import time
from typing import Any

import keras


class StepTime(keras.callbacks.Callback):
    """Adds the median time of a training step to the logs of each epoch, as `step_time_s`.

    The first step of a `fit` is left out, since it is compiled there. Give it before callbacks that read the logs.

    Example:
        >>> history = model.fit(x, y, epochs=2, verbose=0, callbacks=[StepTime()])
        >>> len(history.history["step_time_s"])
        2
    """

    def __init__(self) -> None:
        super().__init__()
        self._times_s: list[float] = []
        self._start_s = 0.0
        self._first_done = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._first_done = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._times_s = []

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._start_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._first_done:
            self._times_s.append(time.perf_counter() - self._start_s)
        self._first_done = True

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["step_time_s"] = statistics.median(self._times_s) if self._times_s else float("nan")
