"""Hybrid: few rounds for small buckets, a flat ring for large ones."""

from __future__ import annotations

from collections.abc import Sequence

from tfdist.collectives.hierarchical import hierarchical_master
from tfdist.collectives.plan import Plan
from tfdist.collectives.ring import ring

DEFAULT_THRESHOLD = 2**18


def hybrid(hosts: Sequence[Sequence[int]], length: int, threshold: int = DEFAULT_THRESHOLD) -> Plan:
    """Sums a small array by `hierarchical_master`, whose rounds are few, and a large one by `ring`, which spreads its bytes.

    ```
    p = 4, hosts (0 1) (2 3), or p = 6, hosts (0 1 2) (3 4 5)
    length <= threshold      the drawing of hierarchical_master
    length >  threshold      the drawing of ring, 0 > 1 > 2 ... > 0, so that one link enters and one leaves each host
    ```

    Args:
        hosts: The ranks of each host.
        length: The elements of the array.
        threshold: The largest array that is small, in elements. Defaults to 2**18, 1 MiB of float32; `tfdist plan` prints where the
            two times cross on a given network, and `algorithm="auto"` goes by that.

    Raises:
        ValueError: If `threshold` is negative.

    Example:
        >>> len(hybrid([[0, 1], [2, 3]], 8, threshold=4).rounds())
        6

    Reference:
        Jia et al. 2018, arXiv 1807.11205, section 3.3 (hybrid all-reduce). The switch there is found by measurement, and not given.
    """
    if threshold < 0:
        raise ValueError(f"`threshold` must be 0 or more, since it is a length. Received: threshold={threshold}.")
    if length <= threshold:
        return hierarchical_master(hosts, length)
    ranks = [rank for host in hosts for rank in host]
    return ring(len(ranks), length).placed(ranks, 0, len(ranks), length)
