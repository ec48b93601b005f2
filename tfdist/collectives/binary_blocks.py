"""Binary blocks: halving and doubling for any number of ranks without sending a byte twice."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tfdist.collectives.halving_doubling import doubling
from tfdist.collectives.halving_doubling import halving
from tfdist.collectives.halving_doubling import shard_of
from tfdist.collectives.plan import in_turn
from tfdist.collectives.plan import Plan
from tfdist.collectives.plan import shard_bounds
from tfdist.collectives.plan import side_by_side
from tfdist.collectives.plan import TRANSFER
from tfdist.collectives.plan import transfers


def binary_blocks(size: int, length: int) -> Plan:
    """Sums an array over all ranks that are split into blocks of a power of two, 600 = 512 + 64 + 16 + 8.

    ```
    p = 6 = 4 + 2, shards A B C D; the large block is ranks 0 to 3, the small one 4 and 5
    add        0 -CD> 1   0 <AB- 1   2 -CD> 3   2 <AB- 3   4 -CD> 5   4 <AB- 5     halving in each block
               0 -B>  2   0 <A-  2   1 -D>  3   1 <C-  3
               4 -A>  0   4 -B>  2   5 -C>  1   5 -D>  3                            small block's sums to the large one
    replace    0 -A>  4   2 -B>  4   1 -C>  5   3 -D>  5                            the same way back
               0 -A>  2   0 <B-  2   1 -C>  3   1 <D-  3
               0 -AB> 1   0 <CD- 1   2 -AB> 3   2 <CD- 3   4 -AB> 5   4 <CD- 5     doubling in each block

    p = 4: one block, which is `halving_doubling`
    ```

    A block sends to the next larger one when it has the sums of all smaller ones, which is no later than that one is ready.

    Cost, with q the largest block: `2 lg q` rounds, and 2 more if there are several blocks; `2(p - 1) * length` elements over all
    ranks, as by a ring. The fold of `halving_doubling` sends up to `length` more from a rank, but each rank a single message more.

    Args:
        size: The number of ranks p.
        length: The elements of the array.

    Example:
        >>> blocks(600)
        [512, 64, 16, 8]

    Reference:
        Rabenseifner and Träff 2004, "More efficient reduction algorithms for non-power-of-two number of processors in
        message-passing parallel systems"; Goyal et al. 2017, arXiv 1706.02677, section 4, which uses it between servers.
    """
    sizes = blocks(size)
    firsts = [sum(sizes[:index]) for index in range(len(sizes))]
    inside = [(range(first, first + block), block) for first, block in zip(firsts, sizes, strict=True)]
    reduce = side_by_side(*(halving(block, length).placed(ranks, 0, size, length) for ranks, block in inside))
    gather = [doubling(block, length).placed(ranks, 0, size, length) for ranks, block in inside]
    up = [_between(size, length, firsts[i + 1], sizes[i + 1], firsts[i], sizes[i]) for i in range(len(sizes) - 1)]
    # The largest block is ready after lg(sizes[0]) rounds; block i sends up when block i - 1 is ready.
    rounds = sizes[0].bit_length() + (len(sizes) > 1) - 1
    rises = [_at(round_, sizes[i].bit_length() - 1, rounds) for i, round_ in enumerate(up)]
    falls = [_at(_reversed(round_), rounds - sizes[i].bit_length(), rounds) for i, round_ in enumerate(up)]
    late = [_delayed(plan, rounds - block.bit_length() + 1) for plan, (_, block) in zip(gather, inside, strict=True)]
    return in_turn(side_by_side(reduce, *rises), side_by_side(*late, *falls))


def blocks(size: int) -> list[int]:
    """The powers of two that add up to a size, the largest first."""
    return [1 << bit for bit in reversed(range(size.bit_length())) if size >> bit & 1]


def _between(size: int, length: int, small_first: int, small: int, large_first: int, large: int) -> Plan:
    """Each rank of the small block sends its shard, in pieces, to those of the large block that keep them."""
    keepers = np.arange(large)
    pieces = shard_of(keepers, large)
    owners = np.argsort(shard_of(np.arange(small), small))[pieces * small // large]
    bounds = shard_bounds(length, large)
    made = transfers(small_first + owners, large_first + keepers, bounds[pieces], bounds[pieces + 1], add=True)
    return Plan(size, length, lambda: iter([made]))


def _reversed(plan: Plan) -> Plan:
    def rounds() -> Iterator[np.ndarray]:
        for before in plan:
            yield transfers(before["destination"], before["source"], before["start"], before["stop"], add=False)

    return Plan(plan.size, plan.length, rounds)


def _delayed(plan: Plan, idle_rounds: int) -> Plan:
    empty = Plan(plan.size, plan.length, lambda: iter([np.empty(0, TRANSFER)] * idle_rounds))
    return in_turn(empty, plan)


def _at(plan: Plan, number: int, rounds: int) -> Plan:
    """A plan of one round, in the given place among others."""
    return in_turn(_delayed(plan, number), _delayed(Plan(plan.size, plan.length, lambda: iter([])), rounds - number - 1))
