"""Some of the ranks, by plans and messages of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.buffer_pool import BufferPool
from tfdist.collectives.plan_runner import PlanRunner
from tfdist.collectives.planned_sum import PlannedSum
from tfdist.collectives.ring import ring
from tfdist.collectives.ring import ring_all_gather
from tfdist.collectives.ring import ring_reduce_scatter
from tfdist.communicators.group import Group
from tfdist.communicators.transport import Transport


class PlannedGroup(Group):
    """Collective operations over a transport that reaches just the ranks of the group.

    Args:
        transport: The transport.
    """

    def __init__(self, transport: Transport) -> None:
        self.size, self.rank = transport.size, transport.rank
        self._runner = PlanRunner(transport)
        self._pool = BufferPool()
        self._scatter = PlannedSum(self._runner, lambda length, itemsize: ring_reduce_scatter(self.size, length))
        self._gather = PlannedSum(self._runner, lambda length, itemsize: ring_all_gather(self.size, length))
        self._sum = PlannedSum(self._runner, lambda length, itemsize: ring(self.size, length))

    def reduce_scatter(self, tensor: Any, name: str) -> Any:
        def scatter(array: np.ndarray) -> np.ndarray:
            return np.split(self._scatter(array), self.size)[self.rank]

        return self._call(scatter, tensor, name)

    def all_reduce(self, tensor: Any, name: str) -> Any:
        return self._call(self._sum, tensor, name)

    def all_gather(self, tensor: Any, name: str) -> Any:
        def gather(array: np.ndarray) -> np.ndarray:
            whole = self._pool.take(array.size * self.size, array.dtype)
            whole[self.rank * array.size : (self.rank + 1) * array.size] = array
            return self._gather(whole)

        return self._call(gather, tensor, name)

    def all_to_all(self, tensor: Any, name: str) -> Any:
        def exchange(rows: np.ndarray) -> np.ndarray:
            received = self._pool.take(rows.size, rows.dtype).reshape(rows.shape)
            received[self.rank] = rows[self.rank]
            self._runner.exchange(rows, received)
            return received

        return self._call(exchange, tensor, name)

    def _call(self, function: Callable[[np.ndarray], np.ndarray], tensor: Any, name: str) -> Any:
        return tensor if self.size == 1 else tf.numpy_function(function, [tensor], tensor.dtype, name=name)
