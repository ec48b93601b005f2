"""One call of `Strategy.run`."""

from __future__ import annotations

import zlib
from typing import Any

from tfdist import _keras
from tfdist._extended.batch_part import BatchPart


class Step:
    """What one call of `Strategy.run` is for, and what it has done so far."""

    def __init__(self, fn: Any) -> None:
        self._purpose = _purpose(fn)
        self._sums: list[str] = []
        self.number_of_sums = 0
        self.parts: list[BatchPart] | None = None
        self.rows: Any = None
        self.is_clean = False
        self.written: dict[int, Any] = {}

    def note_sums(self, sums: list[Any]) -> None:
        self.number_of_sums += 1
        self._sums += [f"{value.shape} {value.dtype.name}" for value in sums]

    def describe(self) -> str:
        if not self._sums:
            return self._purpose
        shapes = ", ".join(self._sums)
        return f"{self._purpose}, which sums {len(self._sums)} tensors ({shapes[:80]}..., {zlib.crc32(shapes.encode()):08x})"


def _purpose(fn: Any) -> str:
    call = _keras.current_call()
    name = getattr(fn, "__name__", type(fn).__name__)
    return f"{call.method}: {name}" if call else f"run {name}"
