"""What optimizers that sum themselves, and callbacks, ask of a strategy of several processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute import distribute_utils

from tfdist._extended.step import Step
from tfdist.collectives.bucket_sum import sum_copies
from tfdist.collectives.executor import Executor


class OverRanks:
    """The part of `HierarchicalExtended` for which `OneProcess` stands in with TensorFlow's own strategies."""

    _executor: Executor
    _rank: int
    _size: int
    _step: Step | None
    _copies: Any
    _kept: Any
    _sum: Any

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._size

    def without_empty(self, values_of_replicas: list[Any]) -> list[Any]:
        """What replicas computed, 0 for those without rows, to be kept for the sum of a later step."""
        return [distribute_utils.regroup(tuple(self._copies(value))) for value in values_of_replicas]

    @contextlib.contextmanager
    def sums_of_earlier_steps(self) -> Iterator[None]:
        """Sums that are begun in here take also what a replica kept that has no rows now."""
        if self._step is not None:
            self._step.is_clean = True
        try:
            yield
        finally:
            if self._step is not None:
                self._step.is_clean = False

    def sum_on_devices(self, values_of_replicas: list[Any]) -> list[Any]:
        """The sum over this process's devices of each value, dense."""
        return sum_copies([[tf.convert_to_tensor(copy) for copy in self._copies(value)] for value in values_of_replicas])

    def sum_over_ranks(self, tensors: list[Any]) -> list[Any]:
        """The sum of each tensor over the ranks."""
        return self._sum([[tensor] for tensor in tensors], self._kept())

    def gather_over_ranks(self, tensor: Any) -> Any:
        """The tensors of all ranks along axis 0, by rank; they may differ in length there."""
        return self._executor.all_gather(tensor)

    def gather_rows(self, array: np.ndarray) -> np.ndarray:
        """The arrays of all ranks, one a row; not in a step."""
        self._executor.meet(lambda: f"gather an array of {array.shape}", 0)
        return self._executor.communicator.gather_array(array[None])

    def broadcast_bytes(self, message: bytes) -> bytes:
        """The first rank's message; not in a step."""
        self._executor.meet(lambda: "receive a message of rank 0", 0)
        size = self._executor.communicator.broadcast_array(np.array([len(message)]))
        padded = np.frombuffer(message, np.uint8) if self._rank == 0 else np.zeros(int(size[0]), np.uint8)
        return self._executor.communicator.broadcast_array(padded).tobytes() if size[0] else b""
