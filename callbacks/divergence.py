"""Whether a loss says that training has gone wrong."""

from __future__ import annotations

import math

# Of a moving average with the smoothing 0.9, after which its start counts for a third.
_SMOOTHING, _LEAST = 0.9, 10


class Divergence:
    """Compares each loss with the best of their moving average.

    Args:
        threshold: A loss above this many times the best average has diverged; None for NaN and infinity only.

    Example:
        >>> divergence = Divergence(threshold=3.0)
        >>> [divergence.is_reached(loss) for loss in [2.0] * 10 + [5.0, 7.0, float("nan")]]
        [False, False, False, False, False, False, False, False, False, False, False, True, True]
    """

    def __init__(self, threshold: float | None) -> None:
        self._threshold = threshold
        self._sum, self._count, self._best = 0.0, 0, math.inf

    def is_reached(self, loss: float) -> bool:
        """Whether this loss has diverged; else it joins the average."""
        if not math.isfinite(loss) or (self._threshold is not None and loss > self._threshold * abs(self._best)):
            return True
        self._sum = _SMOOTHING * self._sum + (1 - _SMOOTHING) * loss
        self._count += 1
        if self._count >= _LEAST:
            self._best = min(self._best, self._sum / (1 - _SMOOTHING**self._count))
        return False

    def get_state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"sum": self._sum, "count": self._count, "best": self._best}

    def set_state(self, state: dict[str, float]) -> None:
        """Goes on from what `get_state` returned."""
        self._sum, self._count, self._best = state["sum"], int(state["count"]), state["best"]
