"""What every engine can do."""

from __future__ import annotations

import abc
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.communicators.group import Group
from tfdist.communicators.transport import Transport


class Communicator(abc.ABC):
    """Moves arrays and tensors between the processes of a job.

    Host methods take NumPy arrays and return when all ranks have taken part. Tensor methods work in a `tf.function` and eagerly.
    All ranks must call the same methods in the same order; `tfdist.agreement` sees to that.

    To add an engine, subclass this, and name it in `tfdist/communicators/__init__.py`.

    Attributes:
        name: What a user writes, such as "mpi".
        rank: This process's rank, from 0.
        size: The number of processes.
        in_order: Whether tensor methods must run one after the other in the same order on every rank.
        sum_dtypes: The dtype names that the engine adds; others travel as one of them.
        has_groups: Whether `group` can be called for some of the ranks.
        transport: Messages from rank to rank, on which plans run; None if the engine has none.
    """

    name: str
    rank: int
    size: int
    in_order: bool = False
    has_groups: bool = False
    transport: Transport | None = None
    sum_dtypes: frozenset[str] = frozenset({"float32", "float64", "int32", "int64"})

    @abc.abstractmethod
    def gather_array(self, array: np.ndarray) -> np.ndarray:
        """Concatenates the arrays of all ranks along axis 0, by rank; their lengths may differ."""

    def gather_host_names(self) -> tuple[str, ...]:
        """The name of each rank's host, by rank."""
        name = np.frombuffer(socket.gethostname().encode()[:255].ljust(255), np.uint8)[None]
        return tuple(row.tobytes().decode().rstrip() for row in self.gather_array(name))

    @abc.abstractmethod
    def broadcast_array(self, array: np.ndarray, root: int = 0) -> np.ndarray:
        """Returns the array of rank `root`; all ranks pass one of its shape and dtype."""

    @abc.abstractmethod
    def all_reduce(self, tensors: list[Any], name: str) -> list[Any]:
        """Sums each tensor over all ranks. All are of one dtype out of `sum_dtypes`; `name` is the same on all ranks."""

    @abc.abstractmethod
    def all_gather(self, tensor: Any, name: str) -> Any:
        """Concatenates tensors of all ranks along axis 0, by rank; their lengths may differ."""

    def group(self, groups: Sequence[Sequence[int]]) -> Group:
        """Operations among the ranks of one group; for engines without a transport.

        Args:
            groups: Each rank is in one of them; the same on all ranks.
        """
        raise NotImplementedError(f"{self.name!r} has no operations among some of the ranks.")

    @abc.abstractmethod
    def abort(self) -> None:
        """Ends this process and, where the engine can, all others, at once."""
