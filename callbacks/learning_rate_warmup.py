"""A learning rate that rises over the first epochs."""

from __future__ import annotations

from typing import Any

from tfdist._keras import check_number
from tfdist.callbacks.learning_rate_scaling import LearningRateScaling
from tfdist.callbacks.rate_factor import RateFactor

_SHAPES = ("linear", "exponential")
_DEFAULT_START = 0.1


class LearningRateWarmup(RateFactor):
    """Starts with a low rate, which large batches need while the weights still change fast.

    ```
    linear         f = start + (1 - start) * e / epochs
    exponential    f = start^(1 - e / epochs)
    from e = epochs on, f = 1
    ```

    Args:
        epochs: The epochs of the rise, above 0. Defaults to 5.
        start: The first factor, in (0, 1]. Defaults to `None`: beside `LearningRateScaling` that of the unscaled rate, so that the
            rate rises from eta to k * eta; else 0.1.
        shape: "linear" or "exponential". Defaults to `"linear"`.
        momentum_correction: See `RateFactor`. Defaults to `True`.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> warmup = LearningRateWarmup(epochs=4, start=0.2)
        >>> [round(warmup.factor(e), 2) for e in (0, 1, 2.5, 4, 9)]
        [0.2, 0.4, 0.7, 1.0, 1.0]

    Reference:
        Goyal et al. 2017, arXiv 1706.02677, section 2.2: a constant increment in each step, for 5 epochs. The first step has the
        rate `start`, and the first one after `epochs` the full rate.
    """

    def __init__(
        self, epochs: float = 5, start: float | None = None, shape: str = "linear", momentum_correction: bool = True
    ) -> None:
        super().__init__(momentum_correction)
        check_number("epochs", epochs, lambda n: n > 0, "a number of epochs above 0")
        if start is not None:
            check_number("start", start, lambda s: 0 < s <= 1, "a factor in (0, 1]")
        if shape not in _SHAPES:
            raise ValueError(f"`shape` must be one of {list(_SHAPES)}. Received: shape={shape!r}.")
        self.epochs, self.start, self.shape = epochs, start, shape

    def factor(self, epoch: float) -> float:
        if epoch >= self.epochs:
            return 1.0
        start, part = self._first(), epoch / self.epochs
        return float(start + (1 - start) * part if self.shape == "linear" else start ** (1 - part))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epochs": self.epochs, "start": self.start, "shape": self.shape}

    def _first(self) -> float:
        if self.start is not None:
            return self.start
        others = self._product.factors if self._product is not None else []
        scaling = [other.scale for other in others if isinstance(other, LearningRateScaling)]
        return min(1.0, 1 / scaling[0]) if scaling else _DEFAULT_START
