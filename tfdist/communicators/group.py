"""Some of the ranks, which exchange tensors among themselves."""

from __future__ import annotations

import abc
from typing import Any


class Group(abc.ABC):
    """Collective operations on tensors among the ranks of a group, in the order of their ranks.

    All ranks of the group must call the same methods in the same order; `name` is the same on all of them. They work in a
    `tf.function` and eagerly.

    Attributes:
        size: The number of ranks in the group.
        rank: This process's place among them, from 0.
    """

    size: int
    rank: int

    @abc.abstractmethod
    def reduce_scatter(self, tensor: Any, name: str) -> Any:
        """Sums tensors of one dimension, and returns this rank's part out of `size` equal ones. May write to `tensor`."""

    @abc.abstractmethod
    def all_reduce(self, tensor: Any, name: str) -> Any:
        """Sums tensors of one dimension. May write to `tensor`."""

    @abc.abstractmethod
    def all_gather(self, tensor: Any, name: str) -> Any:
        """Concatenates tensors of one dimension and equal lengths."""

    @abc.abstractmethod
    def all_to_all(self, tensor: Any, name: str) -> Any:
        """Gives row r of a matrix of `size` rows to rank r; returns the rows that were received, by rank."""
