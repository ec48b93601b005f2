"""Horovod's operations: Gloo on CPUs, NCCL on GPUs."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any
from typing import ClassVar

import numpy as np
import tensorflow as tf

from tfdist.communicators.base import Communicator
from tfdist.communicators.horovod_group import HorovodGroup


class HorovodCommunicator(Communicator):
    """Reaches the other processes by `horovod.tensorflow`, started by `horovodrun`.

    Only Horovod's operations are used. Its Keras layer does nothing under Keras 3, and is never imported.

    Horovod finds out by name which tensors are ready on all ranks, so nothing is ordered here. Unless the user sets them, two of
    its settings are changed: `HOROVOD_CYCLE_TIME` from 1 to 0.2 ms, since a step waits for a few short messages, and on CPUs
    `HOROVOD_FUSION_THRESHOLD` to 0, since buckets come packed, and would be copied twice more while the wire waits.

    Raises:
        ImportError: If Horovod is not installed, or was not built for this TensorFlow.
        RuntimeError: If Gloo is used and the host's own name has no address.
    """

    name = "horovod"
    cycle_time_ms = "0.2"
    # Horovod has each set of ranks once a process, whatever the number of strategies.
    _process_sets: ClassVar[dict[tuple[int, ...], Any]] = {}

    def __init__(self) -> None:
        import horovod.tensorflow as hvd

        if os.environ.get("HOROVOD_CONTROLLER") == "gloo":
            _require_own_address()
        os.environ.setdefault("HOROVOD_CYCLE_TIME", self.cycle_time_ms)
        if not tf.config.list_physical_devices("GPU"):
            os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
        if not hvd.is_initialized() and int(os.environ.get("HOROVOD_LOCAL_SIZE", "1")) > 1:
            # Process sets, which sums inside and across hosts need, can be added later only if Horovod is told now.
            os.environ.setdefault("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        hvd.init()
        self._hvd = hvd
        self.has_groups = os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS") == "1"
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

    def group(self, groups: Sequence[Sequence[int]]) -> HorovodGroup:
        mine = next(ranks for ranks in groups if self.rank in ranks)
        sets = {tuple(ranks): self._process_set(ranks) for ranks in groups}
        return HorovodGroup(self._hvd, mine, sets[tuple(mine)])

    def _process_set(self, ranks: Sequence[int]) -> Any:
        if len(ranks) == 1:
            return None
        if len(ranks) == self.size:
            return self._hvd.global_process_set
        key = tuple(ranks)
        if not self.has_groups:
            raise ValueError(
                "Sums by host need process sets, which Horovod allows only if it is told when it starts. Make the strategy before "
                "`hvd.init()`, or leave that call out; the strategy makes it. Received: Horovod started by the script."
            )
        if key not in self._process_sets:
            self._process_sets[key] = self._hvd.add_process_set(list(ranks))
        return self._process_sets[key]

    def abort(self) -> None:
        os._exit(1)


def own_name_resolves() -> bool:
    """Whether the name of this host has an address."""
    try:
        socket.getaddrinfo(os.uname().nodename, None)
    except OSError:
        return False
    return True


def _require_own_address() -> None:
    if not own_name_resolves():
        # Gloo itself ends with SIGSEGV.
        raise RuntimeError(
            "Gloo finds other ranks by the address of the host's own name, which has none. Give it one: "
            '`echo "127.0.1.1 $(hostname)" | sudo tee -a /etc/hosts`, or on several hosts its real address. '
            f"Received: host {os.uname().nodename!r}."
        )
