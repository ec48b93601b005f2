"""What happens at which epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from tfdist._keras import check_number


def check_epoch_factors(name: str, factors: Any, holds: Callable[[float], bool], rule: str) -> dict[int, float]:
    """Refuses what is no `{epoch: factor}` with rising epochs.

    Args:
        name: The argument's name.
        factors: Its value.
        holds: Whether a factor is allowed.
        rule: What is allowed, in words.

    Returns:
        The same, as a dictionary of plain numbers.

    Raises:
        ValueError: With the rule and the value.
    """
    if not isinstance(factors, Mapping) or not factors:
        raise ValueError(f"`{name}` must be a dictionary of an epoch's number and its factor. Received: {name}={factors!r}.")
    for epoch, factor in factors.items():
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"Epochs in `{name}` must be whole numbers, 0 or more. Received: epoch {epoch!r}.")
        check_number(f"{name}[{epoch}]", factor, holds, rule)
    if any(later <= earlier for earlier, later in itertools.pairwise(factors)):
        raise ValueError(f"Epochs in `{name}` must rise, as training does. Received: {name}={dict(factors)}.")
    return {int(epoch): float(factor) for epoch, factor in factors.items()}
