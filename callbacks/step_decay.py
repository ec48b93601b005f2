"""A learning rate that falls at some epochs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tfdist.callbacks.epoch_factors import check_epoch_factors
from tfdist.callbacks.rate_factor import RateFactor


class StepDecay(RateFactor):
    """Multiplies the rate at some epochs, and keeps it in between.

    ```
    f = product of the factors of all epochs up to now
    ```

    Args:
        factors: `{epoch: factor}`, epochs rising, factors above 0.
        momentum_correction: See `RateFactor`. Defaults to `True`.

    Raises:
        ValueError: If epochs do not rise, or a number is outside its range.

    Example:
        >>> decay = StepDecay({30: 0.1, 60: 0.1, 80: 0.1})
        >>> [round(decay.factor(e), 4) for e in (0, 29, 30, 70, 89)]
        [1.0, 1.0, 0.1, 0.01, 0.001]

    Reference:
        Goyal et al. 2017, arXiv 1706.02677, section 5.1. The slow start of Akiba et al. 2017, arXiv 1711.04325, with 0.5, 0.075,
        0.01 and 0.001 times the rate, is `{0: 0.5, 40: 0.15, 70: 0.1333, 85: 0.1}`.
    """

    needs_steps = False

    def __init__(self, factors: Mapping[int, float], momentum_correction: bool = True) -> None:
        super().__init__(momentum_correction)
        self.factors = check_epoch_factors("factors", factors, lambda f: f > 0, "a number above 0")

    def factor(self, epoch: float) -> float:
        return math.prod((factor for start, factor in self.factors.items() if epoch >= start), start=1.0)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "factors": self.factors}
