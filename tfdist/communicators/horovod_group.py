"""Some of the ranks, as a process set of Horovod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.communicators.group import Group


class HorovodGroup(Group):
    """Horovod's operations on one of its process sets.

    Args:
        hvd: The module `horovod.tensorflow`.
        ranks: The ranks of the group; this one is among them.
        process_set: Horovod's process set of these ranks; not used for a single one.
    """

    def __init__(self, hvd: Any, ranks: Sequence[int], process_set: Any) -> None:
        self._hvd, self._set = hvd, process_set
        self._prefix = "-".join(map(str, ranks))
        self.size, self.rank = len(ranks), list(ranks).index(hvd.rank())

    def reduce_scatter(self, tensor: Any, name: str) -> Any:
        if self.size == 1:
            return tensor
        part = self._hvd.reducescatter(tensor, op=self._hvd.Sum, name=self._name(name), process_set=self._set)
        return _with_length(part, tensor, 1 / self.size)

    def all_reduce(self, tensor: Any, name: str) -> Any:
        if self.size == 1:
            return tensor
        return self._hvd.allreduce(tensor, op=self._hvd.Sum, name=self._name(name), process_set=self._set)

    def all_gather(self, tensor: Any, name: str) -> Any:
        if self.size == 1:
            return tensor
        return _with_length(self._hvd.allgather(tensor, name=self._name(name), process_set=self._set), tensor, self.size)

    def all_to_all(self, tensor: Any, name: str) -> Any:
        if self.size == 1:
            return tensor
        received = self._hvd.alltoall(tensor, name=self._name(name), process_set=self._set)
        # With a process set, Horovod also returns how many rows came from whom.
        return tf.ensure_shape(received[0] if isinstance(received, list | tuple) else received, tensor.shape)

    def _name(self, name: str) -> str:
        return f"{self._prefix}.{name}"


def _with_length(result: Any, argument: Any, factor: float) -> Any:
    length = argument.shape[0]
    return result if length is None else tf.ensure_shape(result, [round(length * factor)])
