"""On which devices the stages are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def resolve(devices: Sequence[str] | int | None, strategy: Any) -> list[str]:
    """The names of the stages' devices.

    Args:
        devices: Names, a number, or None for all devices of the kind that the process has.
        strategy: The one in whose scope the model is made.

    Raises:
        ValueError: If a device does not exist.
    """
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    known = [":".join(device.name.split(":")[-2:]) for device in tf.config.list_logical_devices()]
    mine = getattr(strategy, "devices", None) if getattr(strategy, "pipelined", False) else None
    mine = mine or [name for name in known if name.startswith(kind)]
    if devices is None:
        return mine
    names = mine[: max(devices, 0)] if isinstance(devices, int) else [name.upper().strip("/") for name in devices]
    if not names or any(name not in known for name in names) or (isinstance(devices, int) and devices > len(mine)):
        raise ValueError(f"`devices` must be devices of this process, which has {known}. Received: devices={devices!r}.")
    return names


def agree_on(strategy: Any, starts: list[int]) -> list[int]:
    """The first rank's cut, on all ranks: measured times differ, and gradients are summed stage by stage."""
    if getattr(strategy, "size", 1) == 1:
        return starts
    return list(json.loads(strategy.extended.broadcast_bytes(json.dumps(starts).encode())))
