"""A learning rate that rises and falls again and again."""

from __future__ import annotations

import math
from typing import Any

from tfdist._keras import check_number
from tfdist.callbacks.rate_factor import RateFactor

_SHAPES = ("triangular", "triangular2")


class CyclicalLearningRate(RateFactor):
    """Lets the rate rise from a part of it to the whole, and fall back, in straight lines.

    ```
    x = how far e is from the top of its cycle, in step_epochs; 0 at the top, 1 where cycles meet
    f = minimum + (1 - minimum) * (1 - x) * h
    h = 1 with "triangular";  with "triangular2" 1 in the first cycle, 1/2 in the second, 1/4 in the third ...
    ```

    Args:
        minimum: The lowest factor, in [0, 1).
        step_epochs: Half a cycle, in epochs, above 0. Defaults to 2.
        shape: "triangular" or "triangular2". Defaults to `"triangular"`.
        momentum_correction: See `RateFactor`. Defaults to `True`.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> cycle = CyclicalLearningRate(minimum=0.25, step_epochs=2)
        >>> [cycle.factor(e) for e in (0, 1, 2, 3, 4, 6)]
        [0.25, 0.625, 1.0, 0.625, 0.25, 1.0]

    Reference:
        Smith 2015, arXiv 1506.01186, section 3. There the lower rate is the base; here the upper one is, as for all factors.
    """

    def __init__(self, minimum: float, step_epochs: float = 2, shape: str = "triangular", momentum_correction: bool = True) -> None:
        super().__init__(momentum_correction)
        check_number("minimum", minimum, lambda m: 0 <= m < 1, "a factor in [0, 1)")
        check_number("step_epochs", step_epochs, lambda n: n > 0, "a number of epochs above 0")
        if shape not in _SHAPES:
            raise ValueError(f"`shape` must be one of {list(_SHAPES)}. Received: shape={shape!r}.")
        self.minimum, self.step_epochs, self.shape = minimum, step_epochs, shape

    def factor(self, epoch: float) -> float:
        cycle = math.floor(epoch / (2 * self.step_epochs))
        x = abs(epoch / self.step_epochs - 2 * cycle - 1)
        height = 1.0 if self.shape == "triangular" else 0.5**cycle
        return self.minimum + (1 - self.minimum) * (1 - x) * height

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "minimum": self.minimum, "step_epochs": self.step_epochs, "shape": self.shape}
