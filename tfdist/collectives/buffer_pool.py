"""Buffers that are used again, because the first touch of fresh memory costs more than a copy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

# TensorFlow takes a NumPy array without a copy if it begins at a multiple of this.
ALIGNMENT_BYTES = 64


class BufferPool:
    """Hands out arrays, and hands them out again once nobody refers to them or to a view of them.

    Example:
        >>> pool = BufferPool()
        >>> first = pool.take(4, np.dtype("float32"))
        >>> address = first.ctypes.data
        >>> pool.take(4, np.dtype("float32")).ctypes.data == address
        False
        >>> del first
        >>> pool.take(4, np.dtype("float32")).ctypes.data == address
        True
    """

    def __init__(self) -> None:
        self._buffers: dict[int, list[np.ndarray]] = {}
        self._references_when_free = _references([np.empty(0, np.uint8)])[0]

    def take(self, length: int, dtype: np.dtype[Any]) -> np.ndarray:
        """An array of one dimension with arbitrary content, aligned for TensorFlow."""
        size_bytes = length * dtype.itemsize
        buffer = self._free(size_bytes)
        start = -buffer.ctypes.data % ALIGNMENT_BYTES
        return buffer[start : start + size_bytes].view(dtype)

    def _free(self, size_bytes: int) -> np.ndarray:
        buffers = self._buffers.setdefault(size_bytes, [])
        for index, count in enumerate(_references(buffers)):
            if count == self._references_when_free:
                return buffers[index]
        buffers.append(np.empty(size_bytes + ALIGNMENT_BYTES, np.uint8))
        return buffers[-1]


def _references(buffers: list[np.ndarray]) -> list[int]:
    """How many names each buffer has; every view of it, also one that TensorFlow holds, is one more."""
    return [sys.getrefcount(buffer) for buffer in buffers]


def aligned_offsets(lengths: list[int], itemsize: int) -> list[int]:
    """Where arrays begin that are packed into one, each aligned; the last entry is the length of all.

    Example:
        >>> aligned_offsets([3, 16, 1], 4)
        [0, 16, 32, 48]
    """
    unit = ALIGNMENT_BYTES // itemsize
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + -(-length // unit) * unit)
    return offsets
