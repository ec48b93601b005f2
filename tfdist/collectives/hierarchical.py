"""Hierarchical plans: inside the hosts first, then across, since the wire between hosts is the slow part."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence

import numpy as np

from tfdist.collectives.plan import in_turn
from tfdist.collectives.plan import Plan
from tfdist.collectives.plan import shard_bounds
from tfdist.collectives.plan import side_by_side
from tfdist.collectives.plan import transfers
from tfdist.collectives.ring import ring
from tfdist.collectives.ring import ring_all_gather
from tfdist.collectives.ring import ring_reduce_scatter

Across = Callable[[int, int], Plan]


def hierarchical(hosts: Sequence[Sequence[int]], length: int, across: Across = ring) -> Plan:
    """Sums an array over all ranks: reduce-scatter in each host, all-reduce of each shard across hosts, all-gather in each host.

    ```
    p = 4, hosts (0 1) (2 3), shards A B
    inside    0 -B> 1   0 <A- 1          2 -B> 3   2 <A- 3           add
    across    0 -A"> 2  0 <A'- 2         1 -B"> 3  1 <B'- 3          add: halves A' A" of A, B' B" of B
              0 -A'> 2  0 <A"- 2         1 -B'> 3  1 <B"- 3          replace
    inside    0 -A> 1   0 <B- 1          2 -A> 3   2 <B- 3           replace

    p = 6, hosts (0 1 2) (3 4 5), shards A B C
    inside    rings of 3 in each host: rank 0 and 3 get A, 1 and 4 get B, 2 and 5 get C
    across    A between 0 and 3, B between 1 and 4, C between 2 and 5, at once
    inside    rings of 3
    ```

    Cost, with k ranks a host: `2(k - 1) + 2(p/k - 1)` rounds with a ring across; a rank sends
    `2(length / k)(1 - k/p)` elements across, so a host's link carries what one rank alone would have sent.

    Args:
        hosts: The ranks of each host; all hosts have the same number.
        length: The elements of the array.
        across: Plans the all-reduce between hosts; gets their number and a shard's length. Defaults to `ring`.

    Raises:
        ValueError: If hosts have different numbers of ranks; `hierarchical_master` takes any.

    Example:
        >>> len(hierarchical([[0, 1], [2, 3]], 8).rounds())
        4

    Reference:
        Jia et al. 2018, arXiv 1807.11205, section 3.3 has the version with masters; this one, which users of NCCL know from
        Horovod's hierarchical all-reduce, keeps every rank of a host busy.
    """
    per_host = len(hosts[0])
    if any(len(ranks) != per_host for ranks in hosts):
        raise ValueError(
            "Each shard needs a rank on every host, so all hosts must run the same number; use algorithm='hierarchical_master' for "
            f"others. Received: ranks a host={[len(ranks) for ranks in hosts]}."
        )
    size, bounds = per_host * len(hosts), shard_bounds(length, per_host)
    scatter = [ring_reduce_scatter(per_host, length).placed(ranks, 0, size, length) for ranks in hosts]
    middle = [
        across(len(hosts), int(bounds[shard + 1] - bounds[shard])).placed(
            [ranks[shard] for ranks in hosts], int(bounds[shard]), size, length
        )
        for shard in range(per_host)
    ]
    gather = [ring_all_gather(per_host, length).placed(ranks, 0, size, length) for ranks in hosts]
    return in_turn(side_by_side(*scatter), side_by_side(*middle), side_by_side(*gather))


def hierarchical_master(hosts: Sequence[Sequence[int]], length: int, across: Across = ring) -> Plan:
    """Sums an array over all ranks: to a master in each host, all-reduce among masters, and back.

    ```
    p = 4, hosts (0 1) (2 3), shards A B
    to the master     0 -B> 1   0 <A- 1          2 -B> 3   2 <A- 3       add
                      1 -B> 0                    3 -B> 2                 replace
    masters           0 -AB/2> 2   0 <AB/2- 2    and again               add, replace
    from the master   0 -B> 1                    2 -B> 3                 replace
                      0 -A> 1   0 <B- 1          2 -A> 3   2 <B- 3       replace

    p = 6, hosts (0 1 2) (3 4 5), shards A B C
    to the master     rings of 3, then 1 -B> 0, then 2 -C> 0 (3 likewise)
    masters           0 and 3
    from the master   0 -B> 1, 0 -C> 2 (3 likewise), then rings of 3
    ```

    Cost, with k ranks a host: `4(k - 1) + 2(p/k - 1)` rounds with a ring across; a master sends `2 length (1 - k/p)` elements
    across.

    Args:
        hosts: The ranks of each host; the first of each is its master. Hosts may have different numbers.
        length: The elements of the array.
        across: Plans the all-reduce among masters. Defaults to `ring`.

    Example:
        >>> len(hierarchical_master([[0, 1], [2, 3]], 8).rounds())
        6

    Reference:
        Jia et al. 2018, arXiv 1807.11205, section 3.3: p = 1024, k = 16 takes 186 rounds where a ring takes 2046.
    """
    size = sum(map(len, hosts))
    to_master = [in_turn(ring_reduce_scatter(len(r), length), _gather(len(r), length)).placed(r, 0, size, length) for r in hosts]
    masters = across(len(hosts), length).placed([ranks[0] for ranks in hosts], 0, size, length)
    from_master = [in_turn(_scatter(len(r), length), ring_all_gather(len(r), length)).placed(r, 0, size, length) for r in hosts]
    return in_turn(side_by_side(*to_master), masters, side_by_side(*from_master))


def _gather(size: int, length: int) -> Plan:
    """Rank 0 gets each other rank's shard, one a round."""

    def rounds() -> Iterator[np.ndarray]:
        bounds = shard_bounds(length, size)
        for rank in range(1, size):
            yield transfers([rank], [0], bounds[rank], bounds[rank + 1], add=False)

    return Plan(size, length, rounds)


def _scatter(size: int, length: int) -> Plan:
    """Rank 0 gives each other rank its shard, one a round."""

    def rounds() -> Iterator[np.ndarray]:
        bounds = shard_bounds(length, size)
        for rank in range(1, size):
            yield transfers([0], [rank], bounds[rank], bounds[rank + 1], add=False)

    return Plan(size, length, rounds)
