"""What training did, as numbers and pictures."""

from __future__ import annotations

import importlib.util
import math
import os
import pathlib
import time
from typing import Any

import keras
import numpy as np

from tfdist import _keras
from tfdist.callbacks.global_batch import step_rows
from tfdist.callbacks.global_batch import update_rows
from tfdist.callbacks.report_files import draw
from tfdist.callbacks.report_files import ScalarWriter
from tfdist.callbacks.report_files import write_page
from tfdist.collectives.step_clock import StepClock


class TrainingReport(keras.callbacks.Callback):
    """Writes TensorBoard's scalars after each epoch, and `report.png` and `report.html` at the end.

    ```
    logs of the epoch          loss, metrics, and what callbacks before this one in the list add
    learning_rate              that of the logs, or of the next batch
    batch_size                 the rows of an update
    updates                    of the optimizer, so far
    step_s                     mean over the epoch's steps, without the first step of `fit`, which is compiled
      = compute_s + wait_s + wire_s        until all ranks have met; sums that computing did not hide; the rest
    handed_bytes               of a step: what this rank has given to the engine to be summed or gathered, before compression
    ```

    Put it last in the list. All ranks may have it; rank 0 alone writes.

    Args:
        directory: The folder; it is made if need be, and files of those names in it are replaced.

    Raises:
        ImportError: If matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history = model.fit(x, y, epochs=2, verbose=0, callbacks=[TrainingReport(folder)])
        ...     sorted(name for name in os.listdir(folder) if name.startswith("report"))
        ['report.html', 'report.png']

    Limits:
        Horovod begins a sum when all ranks have asked for it, so that its wire also has some waiting in it. With TensorFlow's own
        strategies all of a step is `compute_s`.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__()
        if importlib.util.find_spec("matplotlib") is None:
            raise ImportError("`TrainingReport` draws with matplotlib: pip install 'tfdist[report]'. Received: no matplotlib.")
        self.directory = pathlib.Path(directory)
        self._rows: list[dict[str, float]] = []
        self._writer: ScalarWriter | None = None
        self._clock: StepClock | None = None
        self._steps, self._is_first = 0, True
        self._start_s = self._spent_s = 0.0
        self._before = (0.0, 0.0, 0)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        strategy = self.model.distribute_strategy
        if getattr(strategy, "is_chief", True):
            self._writer = ScalarWriter(self.directory)
        if hasattr(strategy.extended, "measure_steps"):
            self._clock = StepClock()
            strategy.extended.measure_steps(self._clock)
            _keras.trace_again(self.model)
        self._is_first = True

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._begin_count()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._start_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._spent_s += time.perf_counter() - self._start_s
        self._steps += 1
        if self._is_first:
            self._begin_count()
        self._is_first = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        numbers = {name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0}
        row = {"learning_rate": _keras.rate_now(self.model.optimizer), **numbers, **self._sizes(numbers), **self._times()}
        self._rows.append({"epoch": epoch, **row})
        if self._writer is not None:
            self._writer.write(epoch, row)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._clock is not None:
            self.model.distribute_strategy.extended.measure_steps(None)
            self.model.train_function = self._clock = None
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        if self._rows:
            epochs = [int(row["epoch"]) for row in self._rows]
            names = list(dict.fromkeys(name for row in self._rows for name in row if name != "epoch"))
            columns = {name: [row.get(name, math.nan) for row in self._rows] for name in names}
            title = f"{self.model.name}, {self.model.distribute_strategy.num_replicas_in_sync} replicas"
            draw(self.directory / "report.png", title, epochs, columns)
            write_page(self.directory / "report.html", title, epochs, columns)

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback: the epochs so far."""
        return {"rows": self._rows}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        self._rows = list(state["rows"])

    def _begin_count(self) -> None:
        self._steps, self._spent_s = 0, 0.0
        self._before = self._clock.read() if self._clock is not None else (0.0, 0.0, 0)

    def _sizes(self, numbers: dict[str, float]) -> dict[str, float]:
        rows = step_rows()
        batch = numbers.get("batch_size", update_rows(self.model.optimizer, rows) if rows is not None else math.nan)
        return {"batch_size": float(batch), "updates": float(self.model.optimizer.iterations.numpy())}

    def _times(self) -> dict[str, float]:
        steps = self._steps or math.nan
        now = self._clock.read() if self._clock is not None else self._before
        wait_s, wire_s, handed_bytes = ((after - before) / steps for after, before in zip(now, self._before, strict=True))
        step_s = self._spent_s / steps
        times = {"step_s": step_s, "compute_s": step_s - wait_s - wire_s, "wait_s": wait_s, "wire_s": wire_s}
        return {**times, "handed_bytes": handed_bytes}
