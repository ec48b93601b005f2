"""Where a model is cut into stages: a pure solver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def partition(costs: Sequence[float], stages: int) -> list[int]:
    """Cuts a row of layers so that the slowest stage is as fast as can be.

    ```
    best(n, k) = min over m < n of max(best(m, k - 1), costs[m] + ... + costs[n - 1])
    ```

    Of cuts that are equally good for the slowest stage, the one whose sum of squares is least is taken, so that the others are
    balanced too.

    Args:
        costs: The time, or the parameters, of each layer, 0 or more.
        stages: How many, from 1 to the number of layers.

    Returns:
        The first layer of each stage; the first is 0.

    Raises:
        ValueError: If there are more stages than layers, or a cost is negative.

    Example:
        >>> partition([1.0, 1.0, 4.0, 1.0, 1.0, 1.0], 3)
        [0, 2, 3]
    """
    if not 1 <= stages <= len(costs):
        raise ValueError(f"Each stage has a layer or more. Received: stages={stages}, layers={len(costs)}.")
    if min(costs) < 0:
        raise ValueError(f"The cost of a layer is 0 or more. Received: costs[{list(costs).index(min(costs))}]={min(costs)}.")
    before = [0.0, *itertools.accumulate(costs)]
    # For the first n layers in k stages: the slowest stage, the sum of squares, and the starts of the stages.
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}
    for stage in range(stages):
        best = {
            n: min(_extend(best[m], before[n] - before[m], m) for m in best if m < n)
            for n in range(stage + 1, len(costs) - (stages - stage - 1) + 1)
        }
    return best[len(costs)][2]


def bottleneck(costs: Sequence[float], starts: Sequence[int]) -> float:
    """The cost of the slowest stage.

    Example:
        >>> bottleneck([1.0, 1.0, 4.0, 1.0, 1.0, 1.0], [0, 2, 3])
        4.0
    """
    ends = [*starts[1:], len(costs)]
    return max(math.fsum(costs[start:end]) for start, end in zip(starts, ends, strict=True))


def _extend(found: tuple[float, float, list[int]], cost: float, start: int) -> tuple[float, float, list[int]]:
    slowest, squares, starts = found
    return max(slowest, cost), squares + cost**2, [*starts, start]
