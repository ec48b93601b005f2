"""A plan: which rank sends which slice to whom, and when."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

TRANSFER = np.dtype([("source", np.int32), ("destination", np.int32), ("start", np.int64), ("stop", np.int64), ("add", np.bool_)])

Rounds = Callable[[], Iterator[np.ndarray]]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """An all-reduce, or a part of one, as data: rounds of transfers between ranks.

    ```
    each rank holds an array of `length` elements; in each round, at once for all transfers (s, d, [a, b), add):
        add:      array of d [a, b)  +=  array of s [a, b) as it was when the round began
        replace:  array of d [a, b)   =  array of s [a, b) as it was when the round began
    ```

    A slice that a rank receives in a round is not sent by it in that round. Empty transfers are left out; empty rounds are not, so
    the number of rounds does not depend on the length. Rounds are made when they are asked for: a ring of 4,096 ranks has 33
    million transfers.

    Args:
        size: The number of ranks, at least 1.
        length: The elements of the array, at least 0.
        make_rounds: Makes the rounds, each an array of dtype `TRANSFER`.

    Raises:
        ValueError: If `size` or `length` is out of range.

    Example:
        >>> Plan(2, 3, lambda: iter([transfers([0], [1], [0], [3], add=True)])).rounds()[0].tolist()
        [(0, 1, 0, 3, True)]
    """

    size: int
    length: int
    make_rounds: Rounds

    def __post_init__(self) -> None:
        if self.size < 1 or self.length < 0:
            raise ValueError(
                "A plan needs at least one rank, and no negative number of elements. Received: "
                f"size={self.size}, length={self.length}."
            )

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.make_rounds()

    def rounds(self) -> list[np.ndarray]:
        """All rounds at once."""
        return list(self.make_rounds())

    def placed(self, ranks: Sequence[int], start: int, size: int, length: int) -> Plan:
        """The same plan, run by some ranks of a larger job on a slice of a longer array.

        Args:
            ranks: The rank in the larger job of each rank of this plan.
            start: Where this plan's array begins in the longer one.
            size: The ranks of the larger job.
            length: The elements of the longer array.
        """
        names = np.asarray(ranks, np.int32)

        def rounds() -> Iterator[np.ndarray]:
            for before in self:
                after = before.copy()
                after["source"], after["destination"] = names[before["source"]], names[before["destination"]]
                after["start"] += start
                after["stop"] += start
                yield after

        return Plan(size, length, rounds)


def transfers(source: ArrayLike, destination: ArrayLike, start: ArrayLike, stop: ArrayLike, add: bool) -> np.ndarray:
    """Makes a round of the transfers whose slices are not empty; the arguments are arrays of equal length, or numbers."""
    made = np.empty(np.broadcast(source, destination, start, stop).shape, TRANSFER)
    made["source"], made["destination"], made["start"], made["stop"], made["add"] = source, destination, start, stop, add
    return made[made["start"] < made["stop"]]


def in_turn(*plans: Plan) -> Plan:
    """One plan after the other, on the same ranks and array."""
    return Plan(plans[0].size, plans[0].length, lambda: itertools.chain.from_iterable(plans))


def side_by_side(*plans: Plan) -> Plan:
    """Plans that do not touch the same slice of a rank, all at once: their first rounds together, their second, and so on."""

    def rounds() -> Iterator[np.ndarray]:
        for parts in itertools.zip_longest(*plans, fillvalue=np.empty(0, TRANSFER)):
            yield np.concatenate(parts)

    return Plan(plans[0].size, plans[0].length, rounds)


def shard_bounds(length: int, shards: int) -> np.ndarray:
    """Where each of several shards of nearly equal size begins, and the last one ends: `shards + 1` positions."""
    return np.arange(shards + 1, dtype=np.int64) * length // shards
