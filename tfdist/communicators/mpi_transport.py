"""Messages by MPI."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdist.communicators.transport import Transport

_SPINS = 20
_FIRST_NAP_S, _LONGEST_NAP_S = 3e-5, 2e-4


class MpiTransport(Transport):
    """Point-to-point messages on one MPI communicator.

    While it waits it asks MPI a few times, which serves messages in memory, and then naps between questions, longer and longer: on
    a wire, nothing new comes in a tenth of a millisecond that was not better spent on computing the next gradient.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: The MPI communicator; used by nothing else at the same time.
    """

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm
        self.rank, self.size = comm.Get_rank(), comm.Get_size()

    def send(self, view: np.ndarray, destination: int) -> Any:
        return self._comm.Isend(_as_bytes(view), destination)

    def receive(self, view: np.ndarray, source: int) -> Any:
        return self._comm.Irecv(_as_bytes(view), source)

    def among(self, groups: Sequence[Sequence[int]]) -> MpiTransport:
        number, mine = next((number, ranks) for number, ranks in enumerate(groups) if self.rank in ranks)
        return MpiTransport(self._mpi, self._comm.Split(number, list(mine).index(self.rank)))

    def wait_some(self, requests: list[Any]) -> list[int]:
        nap_s = _FIRST_NAP_S
        for question in itertools.count():
            done: list[int] | None = self._mpi.Request.Testsome(requests)
            if done:
                return done
            if question >= _SPINS:
                time.sleep(nap_s)
                nap_s = min(1.5 * nap_s, _LONGEST_NAP_S)
        return []


def _as_bytes(view: np.ndarray) -> np.ndarray:
    return view.view(np.uint8)
