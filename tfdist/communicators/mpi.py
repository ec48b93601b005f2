"""MPI by mpi4py, on NumPy buffers."""

from __future__ import annotations

import logging
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.communicators.base import Communicator
from tfdist.communicators.mpi_transport import MpiTransport
from tfdist.communicators.transport import DEFAULT_CHUNK_BYTES

_log = logging.getLogger(__name__)


class MpiCommunicator(Communicator):
    """Reaches the other processes by mpi4py, started by `mpirun` or `srun --mpi=pmix`.

    Tensors are handed over as NumPy arrays inside `tf.numpy_function`, so this engine serves CPUs; on GPUs each tensor is copied to
    the host and back.

    Raises:
        ImportError: If mpi4py is not installed or finds no MPI library.
    """

    name = "mpi"
    in_order = True

    def __init__(self) -> None:
        # A rank that waits must not take the core on which the other one computes.
        os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")
        # Above this size Open MPI asks the receiver before it sends. The answer waits behind the data that goes the other way on
        # the same connection, and the two directions take turns. Plans post their receives first, so there is nothing to ask.
        os.environ.setdefault("OMPI_MCA_btl_tcp_eager_limit", str(2 * DEFAULT_CHUNK_BYTES))
        from mpi4py import MPI

        self._mpi = MPI
        self._comm = MPI.COMM_WORLD.Dup()
        self.rank = self._comm.Get_rank()
        self.size = self._comm.Get_size()
        self.transport = MpiTransport(MPI, MPI.COMM_WORLD.Dup())
        if self.rank == 0 and cores_lost():
            _log.warning(
                "mpirun ties each process to one core, on which all of TensorFlow's threads take turns. Start it with "
                "`mpirun --bind-to none ...`, or by `tfdist run`."
            )

    def gather_array(self, array: np.ndarray) -> np.ndarray:
        array = np.ascontiguousarray(array)
        row_bytes = int(np.prod(array.shape[1:], dtype=np.int64)) * array.itemsize
        counts = np.empty(self.size, np.int64)
        self._comm.Allgather(np.array([len(array)], np.int64), counts)
        gathered = np.empty((int(counts.sum()), *array.shape[1:]), array.dtype)
        sizes_bytes = [int(count) * row_bytes for count in counts]
        self._comm.Allgatherv(_as_bytes(array), [_as_bytes(gathered), sizes_bytes])
        return gathered

    def broadcast_array(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        array = np.array(array, order="C")
        self._comm.Bcast(_as_bytes(array), root)
        return array

    def all_reduce(self, tensors: list[Any], name: str) -> list[Any]:
        sums = [tf.numpy_function(self._sum, [tensor], tensor.dtype, name=name) for tensor in tensors]
        for before, after in zip(tensors, sums, strict=True):
            after.set_shape(before.shape)
        return sums

    def all_gather(self, tensor: Any, name: str) -> Any:
        gathered = tf.numpy_function(self.gather_array, [tensor], tensor.dtype, name=name)
        gathered.set_shape([None, *tensor.shape[1:]])
        return gathered

    def abort(self) -> None:
        self._comm.Abort(1)

    def _sum(self, array: np.ndarray) -> np.ndarray:
        total = np.empty_like(array)
        self._comm.Allreduce(array, total)
        return total


def cores_lost() -> bool:
    """Whether this process may use one core of several; mpirun's default for up to two processes."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return mine == 1 and (os.cpu_count() or 1) > 1


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)
