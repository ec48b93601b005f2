"""What is said about variables by patterns on their paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence

# Biases, and the scale and centre of normalisation: few numbers, whose norms say nothing about a layer.
NO_LAYERS = (r"(^|/|_)(bias|gamma|beta)$",)


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether any pattern is found in a path.

    Example:
        >>> matches("dense_1/bias", NO_LAYERS), matches("dense_1/kernel", NO_LAYERS)
        (True, False)
    """
    return any(re.search(pattern, path) for pattern in patterns)


def multiplier(path: str, multipliers: Mapping[str, float], default: float) -> float:
    """The number of the first pattern that is found in a path.

    Example:
        >>> multiplier("stem/conv/kernel", {"stem": 0.5, "kernel": 2.0}, 1.0)
        0.5
    """
    return next((number for pattern, number in multipliers.items() if re.search(pattern, path)), default)


def check_patterns(name: str, patterns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Refuses what is no list of regular expressions.

    Raises:
        ValueError: With the pattern that is none.
    """
    if patterns is None:
        return None
    if isinstance(patterns, str):
        raise ValueError(f"`{name}` must be a list of regular expressions, not one string. Received: {name}={patterns!r}.")
    for pattern in patterns:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"`{name}` must hold regular expressions ({error}). Received: {pattern!r}.") from error
    return tuple(patterns)
