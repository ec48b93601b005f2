"""How noisy the gradient is."""

from __future__ import annotations

import math
from typing import Any

import keras

from tfdist import _keras
from tfdist._extended import NoiseScaleMeter


class NoiseScaleMonitor(keras.callbacks.Callback):
    """Adds the simple noise scale of the gradient to the logs, as `noise_scale`: the batch up to which larger ones pay.

    ```
    noise_scale = tr(covariance of one row's gradient) / |gradient|^2        in rows
    ```

    A batch much smaller than it makes steps that are mostly noise, and twice the batch twice the progress; one much larger is
    wasted. It costs no extra pass: the gradients of the replicas are the small batches, their sum is the large one, and the moving
    averages of both parts are kept separately, since their ratio alone would be biased. `BatchSizeRamp("noise_scale")` follows it;
    put this one before it.

    Args:
        smoothing: What stays of the averages in each update, in [0, 1). Defaults to 0.99.

    Raises:
        ValueError: If `smoothing` is outside its range; in `fit`, if the strategy is another one, or has one replica.

    Example:
        >>> monitor = NoiseScaleMonitor(smoothing=0.9)
        >>> monitor.noise_scale(noise=60.0, signal=0.5)
        120.0

    Reference:
        McCandlish, Kaplan, Amodei et al. 2018, arXiv 1812.06162, appendix A.1, with replicas of different numbers of rows.

    Limits:
        Optimizers that do not sum whole gradients, such as `DGC`, are not measured, and the value is then not a number. Gradients
        that are scaled for half precision are measured as they are; the scale is in both parts.
    """

    steers = True

    def __init__(self, smoothing: float = 0.99) -> None:
        super().__init__()
        _keras.check_number("smoothing", smoothing, lambda s: 0 <= s < 1, "a number in [0, 1)")
        self.smoothing = smoothing
        self._meter: NoiseScaleMeter | None = None

    @staticmethod
    def noise_scale(noise: float, signal: float) -> float:
        """The ratio; infinite where the gradient cannot be told from noise."""
        return max(0.0, noise) / signal if signal > 0 else math.inf

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        strategy = self.model.distribute_strategy
        replicas = int(strategy.num_replicas_in_sync)
        if replicas < 2 or not hasattr(strategy.extended, "noise_scale_meter"):
            raise ValueError(
                "The noise scale is measured between the replicas of a HierarchicalStrategy, which must be two or more. Received: "
                f"{type(strategy).__name__} with {replicas}."
            )
        elements = sum(int(_keras.unwrap(v).shape.num_elements() or 0) for v in self.model.trainable_variables)
        self._meter = strategy.extended.noise_scale_meter = NoiseScaleMeter(elements, self.smoothing)
        _keras.trace_again(self.model)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if batch == 0 and self._meter is not None:
            self._meter.batches.assign(float(_keras.batches_of_update(self.model.optimizer)[1]))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None and self._meter is not None:
            noise, signal, updates = (float(v.numpy()) for v in (self._meter.noise, self._meter.signal, self._meter.updates))
            logs["noise_scale"] = self.noise_scale(noise, signal) if updates else math.nan

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self.model.distribute_strategy.extended.noise_scale_meter = None
        self.model.train_function = None

    def get_config(self) -> dict[str, Any]:
        """The arguments, as plain values; ranks compare them."""
        return {"smoothing": self.smoothing}

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback."""
        if self._meter is None:
            return {}
        return {name: float(getattr(self._meter, name).numpy()) for name in ("noise", "signal", "updates")}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        if self._meter is not None:
            for name, value in state.items():
                variable = getattr(self._meter, name)
                variable.assign(variable.dtype.as_numpy_dtype(value))
