"""How much of a gradient is sent, as numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

_SENT_OF_SAMPLE = 40


def check_ramp(sparsity: float, rampup: Sequence[float], rampup_steps: int) -> None:
    """Refuses a sparsity outside [0, 1), and a ramp that does not rise to it.

    Raises:
        ValueError: With the rule and the value.
    """
    for name, value in [("sparsity", sparsity), *((f"rampup[{i}]", value) for i, value in enumerate(rampup))]:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise ValueError(f"`{name}` is the part that is not sent, a number in [0, 1). Received: {name}={value!r}.")
    values = [*rampup, sparsity]
    if any(later <= earlier for earlier, later in itertools.pairwise(values)):
        raise ValueError(f"`rampup` must rise, and stay below `sparsity`. Received: rampup={rampup}, sparsity={sparsity}.")
    if isinstance(rampup_steps, bool) or not isinstance(rampup_steps, int) or rampup_steps < 1:
        raise ValueError(f"`rampup_steps` must be a whole number of steps, 1 or more. Received: rampup_steps={rampup_steps!r}.")


def sends_dense(sparsity: float, ranks: int) -> bool:
    """Whether values and their indices of all ranks are more than the whole gradient.

    Example:
        >>> sends_dense(0.75, 4), sends_dense(0.75, 3), sends_dense(0.0, 1)
        (True, False, True)
    """
    return (1 - sparsity) * ranks >= 1


def sample_of(length: int, sparsity: float) -> tuple[int, int]:
    """How many elements are looked at to find a threshold, and how far apart they are.

    A hundredth of all, but so many that forty of them are to be sent: then what passes the threshold is what was asked for to about
    a sixth.

    Example:
        >>> sample_of(10**6, 0.999), sample_of(10**6, 0.75), sample_of(1000, 0.999)
        ((40000, 25), (10000, 99), (1000, 1))
    """
    count = min(length, max(math.ceil(length / 100), math.ceil(_SENT_OF_SAMPLE / (1 - sparsity))))
    stride = max(1, length // count)
    # An even stride meets the same channels again and again.
    return count, max(1, stride - 1 + stride % 2)
