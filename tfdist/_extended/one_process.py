"""Sums and gathers of a strategy that has one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.bucket_sum import sum_copies


class OneProcess:
    """Does for TensorFlow's own strategies what `HierarchicalExtended` does over all ranks.

    Args:
        strategy: The strategy.

    Raises:
        ValueError: If it has several processes.
    """

    rank, size = 0, 1

    def __init__(self, strategy: Any) -> None:
        if strategy.extended._in_multi_worker_mode():
            raise ValueError(
                "An optimizer that sums itself needs tfdist.HierarchicalStrategy to reach other processes. Received: "
                f"{type(strategy).__name__}."
            )
        self._strategy = strategy

    def sum_on_devices(self, values: list[Any]) -> list[Any]:
        """The sum over devices of each value, dense."""
        copies = [self._strategy.experimental_local_results(value) for value in values]
        return sum_copies([[tf.convert_to_tensor(copy) for copy in each] for each in copies])

    def sum_over_ranks(self, values: list[Any]) -> list[Any]:
        """The values."""
        return values

    def gather_over_ranks(self, value: Any) -> Any:
        """The value."""
        return value

    def gather_rows(self, array: np.ndarray) -> np.ndarray:
        """The array, as the only row."""
        return array[None]

    def broadcast_bytes(self, message: bytes) -> bytes:
        """The message."""
        return message


def ranks_of(strategy: Any) -> Any:
    """What sums over a strategy's devices and ranks, outside of its replicas."""
    return strategy.extended if hasattr(strategy.extended, "sum_over_ranks") else OneProcess(strategy)
