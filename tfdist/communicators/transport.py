"""Messages from one rank to another, for engines that have them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

# Longer messages are sent in pieces of this size.
DEFAULT_CHUNK_BYTES = 2**20


class Transport(abc.ABC):
    """Sends and receives views of NumPy arrays, without waiting.

    Messages between two ranks are matched in the order in which both name them. A view must not be touched before its request is
    done.

    Attributes:
        rank: This process's rank, from 0.
        size: The number of processes.
    """

    rank: int
    size: int

    @abc.abstractmethod
    def send(self, view: np.ndarray, destination: int) -> Any:
        """Begins to send a contiguous view; returns a request."""

    @abc.abstractmethod
    def receive(self, view: np.ndarray, source: int) -> Any:
        """Begins to receive into a contiguous view of the length and dtype that was sent; returns a request."""

    @abc.abstractmethod
    def among(self, groups: Sequence[Sequence[int]]) -> Transport:
        """A transport among the ranks of one group.

        Args:
            groups: Each rank is in one of them; the same on all ranks, all of which must call this.
        """

    @abc.abstractmethod
    def wait_some(self, requests: list[Any]) -> list[int]:
        """Waits until some of the requests are done; returns their places in the list. Must not be called with none left."""
