"""On which devices the stages are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tfdist.devices import known_devices
from tfdist.devices import short_name


def resolve(devices: Sequence[str] | int | None, strategy: Any) -> list[str]:
    """The names of the stages' devices.

    Args:
        devices: Names, a number, or None for all devices of the kind that the process has.
        strategy: The one in whose scope the model is made.

    Raises:
        ValueError: If a device does not exist.
    """
    mine = strategy.devices if getattr(strategy, "pipelined", False) else known_devices("GPU") or known_devices("CPU")
    if devices is None:
        return mine
    names = mine[: max(devices, 0)] if isinstance(devices, int) else [short_name(name) for name in devices]
    known = known_devices()
    if not names or not set(names) <= set(known) or (isinstance(devices, int) and devices > len(mine)):
        raise ValueError(f"`devices` must be devices of this process, which has {known}. Received: devices={devices!r}.")
    return names


def agree_on(strategy: Any, starts: list[int]) -> list[int]:
    """The first rank's cut, on all ranks: measured times differ, and gradients are summed stage by stage."""
    if getattr(strategy, "size", 1) == 1:
        return starts
    return list(json.loads(strategy.extended.broadcast_bytes(json.dumps(starts).encode())))
