"""Horovod's operations: Gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.communicators.base import Communicator


class HorovodCommunicator(Communicator):
    """Reaches the other processes by `horovod.tensorflow`, started by `horovodrun`.

    Only Horovod's operations are used. Its Keras layer does nothing under Keras 3, and is never imported.

    Horovod fuses tensors itself, and finds out by name which of them are ready on all ranks; so nothing is packed or ordered here.
    `HOROVOD_CYCLE_TIME` is 1 ms there; unless the user sets it, it is lowered, since a step waits for a few short messages.

    Raises:
        ImportError: If Horovod is not installed, or was not built for this TensorFlow.
    """

    name = "horovod"
    cycle_time_ms = "0.2"

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        os.environ.setdefault("HOROVOD_CYCLE_TIME", self.cycle_time_ms)
        hvd.init()
        self._hvd = hvd
        self.rank = hvd.rank()
        self.size = hvd.size()

    def gather_array(self, array: np.ndarray) -> np.ndarray:
        with tf.device("CPU:0"):
            return self._hvd.allgather(tf.constant(array), name=f"tfdist.gather.{array.dtype}").numpy()

    def broadcast_array(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        with tf.device("CPU:0"):
            return self._hvd.broadcast(tf.constant(array), root, name=f"tfdist.broadcast.{array.dtype}.{array.shape}").numpy()

    def all_reduce(self, tensors: list[Any], name: str) -> list[Any]:
        return [self._hvd.allreduce(tensor, op=self._hvd.Sum, name=f"{name}.{index}") for index, tensor in enumerate(tensors)]

    def all_gather(self, tensor: Any, name: str) -> Any:
        return self._hvd.allgather(tensor, name=name)

    def abort(self) -> None:
        os._exit(1)
