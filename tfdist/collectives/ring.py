"""The ring: fewest bytes for any number of ranks, and the most rounds."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tfdist.collectives.plan import in_turn
from tfdist.collectives.plan import Plan
from tfdist.collectives.plan import shard_bounds
from tfdist.collectives.plan import transfers


def ring(size: int, length: int) -> Plan:
    """Sums an array over all ranks by passing shards around a ring, once to add and once to hand out.

    ```
    p = 4, shards A B C D                      each rank sends one shard to the next rank in each round
                rank 0   rank 1   rank 2   rank 3
    add         D>1      A>2      B>3      C>0      round r: rank i sends shard i - r - 1 ...
                C>1      D>2      A>3      B>0
                B>1      C>2      D>3      A>0      ... after p - 1 rounds, rank i has the sum of shard i
    replace     A>1      B>2      C>3      D>0      round r: rank i sends shard i - r
                D>1      A>2      B>3      C>0
                C>1      D>2      A>3      B>0

    p = 6, shards A to F: 5 + 5 rounds
    add         F>1  A>2  B>3  C>4  D>5  E>0   ...   replace   A>1  B>2  C>3  D>4  E>5  F>0   ...
    ```

    Cost: `2(p - 1)` rounds; over all ranks `2(p - 1) * length` elements, from each `2(p - 1) / p * length`.

    Args:
        size: The number of ranks p.
        length: The elements of the array.

    Example:
        >>> [r.tolist() for r in ring(2, 3)]
        [[(0, 1, 1, 3, True), (1, 0, 0, 1, True)], [(0, 1, 0, 1, False), (1, 0, 1, 3, False)]]

    Reference:
        Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH", section 4.
    """
    return in_turn(ring_reduce_scatter(size, length), ring_all_gather(size, length))


def ring_reduce_scatter(size: int, length: int) -> Plan:
    """The first half of `ring`: rank i ends with the sum of shard i of `shard_bounds(length, size)`."""
    return Plan(size, length, lambda: _rounds(size, length, first=1, add=True))


def ring_all_gather(size: int, length: int) -> Plan:
    """The second half of `ring`: rank i begins with shard i, and all end with all shards."""
    return Plan(size, length, lambda: _rounds(size, length, first=0, add=False))


def _rounds(size: int, length: int, first: int, add: bool) -> Iterator[np.ndarray]:
    ranks, bounds = np.arange(size), shard_bounds(length, size)
    for number in range(first, first + size - 1):
        shards = (ranks - number) % size
        yield transfers(ranks, (ranks + 1) % size, bounds[shards], bounds[shards + 1], add)
