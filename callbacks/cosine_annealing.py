"""A learning rate that falls along a cosine, and may start again."""

from __future__ import annotations

import math
from typing import Any

from tfdist._keras import check_number
from tfdist.callbacks.rate_factor import RateFactor


class CosineAnnealing(RateFactor):
    """Lets the rate fall along half a cosine, with warm restarts.

    ```
    f = minimum + (1 - minimum) / 2 * (1 + cos(pi * T_cur / T_i))
    T_cur: epochs since the last restart      T_i: T_0, then T_mult times as many after each restart
    ```

    Args:
        T_0: The epochs until the first restart, above 0; those of the whole training for none.
        T_mult: What each period is longer than the one before, 1 or more. Defaults to 1.
        minimum: The factor just before a restart, in [0, 1]. Defaults to 0.
        start_epoch: Where the cosine begins; before that f is 1, for a warm-up. Defaults to 0.
        momentum_correction: See `RateFactor`. Defaults to `True`.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> cosine = CosineAnnealing(T_0=2, T_mult=2)
        >>> [round(cosine.factor(e), 2) for e in (0, 1, 1.5, 2, 4, 6)]
        [1.0, 0.5, 0.15, 1.0, 0.5, 1.0]

    Reference:
        Loshchilov and Hutter 2016 (SGDR), arXiv 1608.03983, equation 5. There the rate changes with each batch, as here.
    """

    def __init__(
        self,
        T_0: float,
        T_mult: float = 1,
        minimum: float = 0.0,
        start_epoch: float = 0,
        momentum_correction: bool = True,
    ) -> None:
        super().__init__(momentum_correction)
        check_number("T_0", T_0, lambda t: t > 0, "a number of epochs above 0")
        check_number("T_mult", T_mult, lambda t: t >= 1, "a number of 1 or more")
        check_number("minimum", minimum, lambda m: 0 <= m <= 1, "a factor in [0, 1]")
        check_number("start_epoch", start_epoch, lambda e: e >= 0, "a number of epochs, 0 or more")
        self.T_0, self.T_mult, self.minimum, self.start_epoch = T_0, T_mult, minimum, start_epoch

    def factor(self, epoch: float) -> float:
        if epoch < self.start_epoch:
            return 1.0
        since, length = period(epoch - self.start_epoch, self.T_0, self.T_mult)
        return self.minimum + (1 - self.minimum) / 2 * (1 + math.cos(math.pi * since / length))

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "T_0": self.T_0,
            "T_mult": self.T_mult,
            "minimum": self.minimum,
            "start_epoch": self.start_epoch,
        }


def period(epoch: float, first: float, times: float) -> tuple[float, float]:
    """How long ago the last restart was, and the length of the period, in epochs.

    Example:
        >>> period(5.0, 2.0, 2.0), period(5.0, 2.0, 1.0)
        ((3.0, 4.0), (1.0, 2.0))
    """
    if times == 1:
        return epoch % first, first
    # The n-th restart is at first * (times^n - 1) / (times - 1).
    restarts = math.floor(math.log(epoch / first * (times - 1) + 1, times) + 1e-9)
    return max(0.0, epoch - first * (times**restarts - 1) / (times - 1)), first * times**restarts
