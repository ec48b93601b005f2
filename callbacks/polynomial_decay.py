"""A learning rate that falls along a power."""

from __future__ import annotations

from typing import Any

from tfdist._keras import check_number
from tfdist.callbacks.rate_factor import RateFactor


class PolynomialDecay(RateFactor):
    """Lets the rate fall to a part of it along a power, as recipes for LARS do.

    ```
    f = end + (1 - end) * (1 - (e - start_epoch) / (epochs - start_epoch))^power
    before start_epoch f = 1, from epochs on f = end
    ```

    Args:
        epochs: Where the fall ends, after `start_epoch`.
        power: Above 0; 1 is a straight line. Defaults to 2.
        end: The last factor, in [0, 1]. Defaults to 0.
        start_epoch: Where it begins, for a warm-up. Defaults to 0.
        momentum_correction: See `RateFactor`. Defaults to `True`.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> decay = PolynomialDecay(epochs=10, start_epoch=2)
        >>> [round(decay.factor(e), 4) for e in (0, 2, 6, 8, 10, 11)]
        [1.0, 1.0, 0.25, 0.0625, 0.0, 0.0]

    Reference:
        You, Gitman and Ginsburg 2017, arXiv 1708.03888, section 6, with power 2.
    """

    def __init__(
        self,
        epochs: float,
        power: float = 2,
        end: float = 0.0,
        start_epoch: float = 0,
        momentum_correction: bool = True,
    ) -> None:
        super().__init__(momentum_correction)
        check_number("start_epoch", start_epoch, lambda e: e >= 0, "a number of epochs, 0 or more")
        check_number("epochs", epochs, lambda e: e > start_epoch, f"a number of epochs above start_epoch={start_epoch}")
        check_number("power", power, lambda p: p > 0, "a number above 0")
        check_number("end", end, lambda f: 0 <= f <= 1, "a factor in [0, 1]")
        self.epochs, self.power, self.end, self.start_epoch = epochs, power, end, start_epoch

    def factor(self, epoch: float) -> float:
        part = min(1.0, max(0.0, (epoch - self.start_epoch) / (self.epochs - self.start_epoch)))
        return float(self.end + (1 - self.end) * (1 - part) ** self.power)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "epochs": self.epochs,
            "power": self.power,
            "end": self.end,
            "start_epoch": self.start_epoch,
        }
