"""A batch that grows during training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tfdist import _keras
from tfdist.callbacks.batch_control import BatchControl
from tfdist.callbacks.epoch_factors import check_epoch_factors
from tfdist.callbacks.plateau import Plateau
from tfdist.callbacks.rate_factor import RateFactor
from tfdist.callbacks.step_decay import StepDecay

_MODES = ("data", "accumulate")
_MEASURED = ("plateau", "noise_scale")


class BatchSizeRamp(RateFactor):
    """Raises the global batch where a schedule would cut the learning rate: the same noise in fewer, larger updates.

    ```
    f: what the schedule multiplies the rate by          B_0: the first batch
    B = min(B_0 / f, max_batch_size)                     at the first step of an epoch, for all of it
    rate = base * f * B / B_0                            so once B has reached its limit, the rate falls
    ```

    `mode="data"` makes the batches themselves larger: give `fit` a dataset of `tfdist.data.rampable`. Up to `max_step_batch_size`,
    that is; beyond, and with `mode="accumulate"` from the start, gradients of several batches are added up, by an optimizer inside
    `tfdist.optimizers.GradientAccumulation`. Steps of an epoch, the progress bar and `LearningRateScaling` follow. The first epoch
    has the first size, and so has the next `fit`. `logs["batch_size"]` is the size of the epoch.

    Args:
        schedule: `{epoch: q}`: the batch is multiplied by q, 1 or more, at these epochs; or a callback of this package that would
            cut the rate, such as `StepDecay({30: 0.2})` (do not give it to `fit` as well); or "plateau": multiplied by `factor`
            when `monitor` has not fallen for `patience` epochs; or "noise_scale": raised to what `NoiseScaleMonitor`, before this
            one in the list, has measured in the epoch, by at most `factor` at once.
        mode: "data" or "accumulate". Defaults to `"data"`.
        max_batch_size: The largest batch of an update. Defaults to `None`: none; the data must allow it.
        max_step_batch_size: The largest batch of a step, by what memory holds, for "data". Defaults to `None`: none.
        factor: q of "plateau" and the most of "noise_scale", above 1. Defaults to 2.
        patience: Epochs, 1 or more, of "plateau". Defaults to 3.
        monitor: What "plateau" looks at in the logs. Defaults to `"loss"`.
        momentum_correction: See `RateFactor`. Defaults to `True`.

    Raises:
        ValueError: If an argument is outside its range, such as a factor below 1; in `fit`, if the batch cannot be raised: the
            dataset is not rampable, it is cut into epochs by `steps_per_epoch`, or the optimizer does not accumulate.

    Example:
        >>> rows = tf.data.Dataset.from_tensor_slices((np.ones((16, 1)), np.ones((16, 1))))
        >>> ramp = BatchSizeRamp({1: 2, 2: 2})
        >>> history = model.fit(tfdist.data.rampable(rows, 2), epochs=3, shuffle=False, verbose=0, callbacks=[ramp])
        >>> history.history["batch_size"]
        [2, 4, 8]

    Reference:
        Smith, Kindermans, Ying and Le 2017, arXiv 1711.00489, section 3: the scale of the noise is g = epsilon * (N / B - 1), so
        that for B far below N a batch q times as large does what a rate of 1 / q does.
    """

    needs_steps = False

    def __init__(
        self,
        schedule: Mapping[int, float] | RateFactor | str,
        *,
        mode: str = "data",
        max_batch_size: int | None = None,
        max_step_batch_size: int | None = None,
        factor: float = 2.0,
        patience: int = 3,
        monitor: str = "loss",
        momentum_correction: bool = True,
    ) -> None:
        super().__init__(momentum_correction)
        if mode not in _MODES:
            raise ValueError(f"`mode` must be one of {list(_MODES)}. Received: mode={mode!r}.")
        for name, rows in (("max_batch_size", max_batch_size), ("max_step_batch_size", max_step_batch_size)):
            if rows is not None:
                _keras.check_number(name, rows, lambda r: r >= 1, "a number of rows, 1 or more")
        _keras.check_number("factor", factor, lambda q: q > 1, "a number above 1")
        self.schedule, self._decay = schedule, _decay_of(schedule)
        self.needs_steps = self._decay is not None and self._decay.needs_steps
        self.mode, self.max_batch_size, self.max_step_batch_size = mode, max_batch_size, max_step_batch_size
        self.growth, self._plateau = factor, Plateau(monitor, patience)
        self._control: BatchControl | None = None
        self._grown = 1.0

    def factor(self, epoch: float) -> float:
        if self._control is None:
            return 1.0
        cut = self._decay.factor(epoch) if self._decay is not None else 1 / self._grown
        return cut * self._control.rows / self._control.first_rows

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self._control = BatchControl(self.model.optimizer, self.mode, self.max_step_batch_size)
        self._apply(_keras.fit_data().initial_epoch)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._apply(epoch)
        if self._control is not None:
            self._control.begin_epoch()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        logs = logs if logs is not None else {}
        if self._control is not None:
            logs["batch_size"] = self._control.rows
        self._measure(logs)
        # Keras 2 begins to read an epoch's data before it says that the epoch begins.
        self._apply(epoch + 1)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        if self._control is not None:
            self._control.set(self._control.first_rows)
        self._control = None

    def get_config(self) -> dict[str, Any]:
        schedule = self.schedule
        described = {type(schedule).__name__: schedule.get_config()} if isinstance(schedule, RateFactor) else schedule
        return {
            **super().get_config(),
            "schedule": described,
            "mode": self.mode,
            "max_batch_size": self.max_batch_size,
            "max_step_batch_size": self.max_step_batch_size,
            "factor": self.growth,
            "patience": self._plateau.patience,
            "monitor": self._plateau.monitor,
        }

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback."""
        return {**super().get_state(), "grown": self._grown, "plateau": self._plateau.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        super().set_state(state)
        self._grown = state["grown"]
        self._plateau.set_state(state["plateau"])

    def _measure(self, logs: dict[str, Any]) -> None:
        if self.schedule == "plateau" and self._plateau.is_reached(logs):
            self._grown *= self.growth
        if self.schedule == "noise_scale" and self._control is not None:
            if "noise_scale" not in logs:
                raise ValueError(
                    '`BatchSizeRamp("noise_scale")` reads what NoiseScaleMonitor writes: put one before it in `callbacks`. '
                    f"Received: logs of {sorted(logs)}."
                )
            self._grown = grown_to(logs["noise_scale"] / self._control.first_rows, self._grown, self.growth)

    def _apply(self, epoch: int) -> None:
        """Sets the batch of an epoch that is about to begin."""
        if self._control is None:
            return
        cut = self._decay.factor(epoch) if self._decay is not None else 1 / self._grown
        wanted = self._control.first_rows / cut if cut > 0 else math.inf
        rows = min(wanted, max(self.max_batch_size or math.inf, self._control.first_rows))
        if math.isinf(rows):
            raise ValueError("A schedule that ends at 0 asks for a batch without end: give `max_batch_size`. Received: None.")
        self._control.set(round(rows))


def grown_to(wanted: float, grown: float, most: float) -> float:
    """How many times the first batch the next one is, which grows by `most` at once, and does not shrink.

    Example:
        >>> [grown_to(wanted, grown=2.0, most=2.0) for wanted in (1.0, 3.0, 9.0, float("nan"))]
        [2.0, 3.0, 4.0, 2.0]
    """
    return min(wanted, grown * most) if wanted > grown else grown


def _decay_of(schedule: Any) -> RateFactor | None:
    """The schedule as one of the learning rate; None if it is measured."""
    if isinstance(schedule, RateFactor):
        return schedule
    if isinstance(schedule, str):
        if schedule not in _MEASURED:
            raise ValueError(f"`schedule` must be one of {list(_MEASURED)}, a dictionary or a callback. Received: {schedule=}.")
        return None
    factors = check_epoch_factors("schedule", schedule, lambda q: q >= 1, "a number of 1 or more: the batch does not shrink")
    return StepDecay({epoch: 1 / factor for epoch, factor in factors.items()})
