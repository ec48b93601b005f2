"""A learning rate that follows the batch size."""

from __future__ import annotations

from typing import Any

from tfdist import _keras
from tfdist.callbacks.global_batch import step_rows
from tfdist.callbacks.global_batch import update_rows
from tfdist.callbacks.rate_factor import RateFactor

_RULES = ("linear", "sqrt")


class LearningRateScaling(RateFactor):
    """Multiplies the rate by what the batch is larger than the one that the rate was found with.

    ```
    B = rows of a step of all replicas * batches whose gradients are added up
    linear    f = B / base_batch_size          sqrt    f = sqrt(B / base_batch_size)
    ```

    `B` is looked at when an epoch begins, so that `BatchSizeRamp` is followed. It is the global batch: the one given to `fit`, or
    that of its dataset, on however many ranks. Use it with `LearningRateWarmup`.

    Args:
        base_batch_size: The batch size that the optimizer's learning rate belongs to.
        rule: "linear", or "sqrt", which some prefer with Adam. Defaults to `"linear"`.
        batch_size: The global batch size, where `fit` cannot know it, such as for datasets that each rank makes for itself.
            Defaults to `None`.
        momentum_correction: See `RateFactor`. Defaults to `True`.

    Raises:
        ValueError: If an argument is outside its range; in `fit`, if the batch size cannot be known.

    Example:
        >>> scaling = LearningRateScaling(base_batch_size=64, batch_size=256)
        >>> scaling.factor(0)
        4.0

    Reference:
        Goyal et al. 2017, arXiv 1706.02677, section 2.1 (linear); Krizhevsky 2014, arXiv 1404.5997, section 5 (square root).
    """

    needs_steps = False

    def __init__(
        self, base_batch_size: int, rule: str = "linear", batch_size: int | None = None, momentum_correction: bool = True
    ) -> None:
        super().__init__(momentum_correction)
        _keras.check_number("base_batch_size", base_batch_size, lambda b: b >= 1, "a number of rows, 1 or more")
        if batch_size is not None:
            _keras.check_number("batch_size", batch_size, lambda b: b >= 1, "a number of rows, 1 or more")
        if rule not in _RULES:
            raise ValueError(f"`rule` must be one of {list(_RULES)}. Received: rule={rule!r}.")
        self.base_batch_size, self.rule, self.batch_size = base_batch_size, rule, batch_size
        self.scale = self._scale(batch_size or base_batch_size)

    def factor(self, epoch: float) -> float:
        return self.scale

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        rows = self.batch_size or step_rows()
        if rows is None:
            raise ValueError(
                "The batch size of this dataset cannot be seen; give LearningRateScaling(batch_size=...), the rows of all replicas "
                "together. Received: batch_size=None."
            )
        self.scale = self._scale(update_rows(self.model.optimizer, rows))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "base_batch_size": self.base_batch_size,
            "rule": self.rule,
            "batch_size": self.batch_size,
        }

    def _scale(self, rows: int) -> float:
        times = rows / self.base_batch_size
        return float(times if self.rule == "linear" else times**0.5)
