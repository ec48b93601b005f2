"""Recursive halving and doubling: fewest bytes in few rounds, best where the number of ranks is a power of two."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tfdist.collectives.plan import in_turn
from tfdist.collectives.plan import Plan
from tfdist.collectives.plan import shard_bounds
from tfdist.collectives.plan import transfers


def halving_doubling(size: int, length: int) -> Plan:
    """Sums an array over all ranks by exchanging halves with ever farther partners, and back.

    ```
    p = 4, shards A B C D; rank i ends the first half with shard: 0 A, 1 C, 2 B, 3 D (the rank's bits reversed)
    add        0 -CD> 1   0 <AB- 1   2 -CD> 3   2 <AB- 3         half of the array, to the neighbour
               0 -B>  2   0 <A-  2   1 -D>  3   1 <C-  3         half of the half, to the rank at distance 2
    replace    0 -A>  2   0 <B-  2   1 -C>  3   1 <D-  3
               0 -AB> 1   0 <CD- 1   2 -AB> 3   2 <CD- 3

    p = 6 = 4 + 2: two pairs become one rank each, before and after
    fold       0 -ABCD> 1        2 -ABCD> 3                      add
               ranks 1, 3, 4, 5 as above
    unfold     1 -ABCD> 0        3 -ABCD> 2                      replace
    ```

    Cost, with q the largest power of two up to p: `2 lg q` rounds, and 2 more if `p > q`; over all ranks
    `2(q - 1) * length + 2(p - q) * length` elements, from each rank of a power of two `2(p - 1) / p * length`.

    Args:
        size: The number of ranks p.
        length: The elements of the array.

    Example:
        >>> [r.tolist() for r in halving_doubling(2, 3)]
        [[(0, 1, 1, 3, True), (1, 0, 0, 1, True)], [(0, 1, 0, 1, False), (1, 0, 1, 3, False)]]

    Reference:
        Thakur, Rabenseifner and Gropp 2005, section 4 (Rabenseifner's algorithm). There the first exchange is with the farthest
        partner. Here it is with the nearest one: ranks of one host are neighbours, so the largest messages stay inside the host,
        and with 2^k ranks a host no more crosses the wire than by a hierarchical plan.
    """
    folded = 1 << (size.bit_length() - 1)
    extra = size - folded
    givers = 2 * np.arange(extra)
    inner = in_turn(halving(folded, length), doubling(folded, length))
    if not extra:
        return inner
    fold = Plan(size, length, lambda: iter([transfers(givers, givers + 1, 0, length, add=True)]))
    unfold = Plan(size, length, lambda: iter([transfers(givers + 1, givers, 0, length, add=False)]))
    return in_turn(fold, inner.placed([*(givers + 1), *range(2 * extra, size)], 0, size, length), unfold)


def halving(size: int, length: int) -> Plan:
    """The first half: rank i of a power of two ends with the sum of shard `shard_of(i, size)`."""
    return Plan(size, length, lambda: _rounds(size, length, range(size.bit_length() - 1), add=True))


def doubling(size: int, length: int) -> Plan:
    """The second half: rank i of a power of two begins with shard `shard_of(i, size)`, and all end with all."""
    return Plan(size, length, lambda: _rounds(size, length, range(size.bit_length() - 2, -1, -1), add=False))


def shard_of(ranks: np.ndarray, size: int) -> np.ndarray:
    """The shard that each rank ends `halving` with: its bits reversed.

    Example:
        >>> shard_of(np.arange(8), 8).tolist()
        [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = size.bit_length() - 1
    shards = np.zeros_like(ranks)
    for bit in range(bits):
        shards += ((ranks >> bit) & 1) << (bits - 1 - bit)
    return shards


def _rounds(size: int, length: int, bits: range, add: bool) -> Iterator[np.ndarray]:
    ranks, bounds = np.arange(size), shard_bounds(length, size)
    for bit in bits:
        partners = ranks ^ (1 << bit)
        # What a rank keeps in this exchange is a run of `run` shards; it gives its partner the run that the partner keeps.
        run = size >> (bit + 1)
        kept = shard_of(partners if add else ranks, size) // run * run
        yield transfers(ranks, partners, bounds[kept], bounds[kept + run], add)
