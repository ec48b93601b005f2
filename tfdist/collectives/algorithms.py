"""The algorithms by name."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence

from tfdist.collectives.binary_blocks import binary_blocks
from tfdist.collectives.halving_doubling import halving_doubling
from tfdist.collectives.hierarchical import hierarchical
from tfdist.collectives.hierarchical import hierarchical_master
from tfdist.collectives.hybrid import hybrid
from tfdist.collectives.plan import Plan
from tfdist.collectives.ring import ring

Hosts = Sequence[Sequence[int]]


def _in_order_of_hosts(flat: Callable[[int, int], Plan]) -> Callable[[Hosts, int], Plan]:
    """Runs a plan that knows no hosts with the ranks of a host as neighbours."""

    def plan(hosts: Hosts, length: int) -> Plan:
        ranks = [rank for host in hosts for rank in host]
        return flat(len(ranks), length).placed(ranks, 0, len(ranks), length)

    return plan


PLANS: dict[str, Callable[[Hosts, int], Plan]] = {
    "ring": _in_order_of_hosts(ring),
    "halving_doubling": _in_order_of_hosts(halving_doubling),
    "binary_blocks": _in_order_of_hosts(binary_blocks),
    "hierarchical": hierarchical,
    "hierarchical_master": hierarchical_master,
    "hybrid": hybrid,
}


def names_for(hosts: Hosts) -> list[str]:
    """The algorithms that can run on these hosts: "hierarchical" needs the same number of ranks on each."""
    even = len({len(ranks) for ranks in hosts}) == 1
    return [name for name in PLANS if even or name != "hierarchical"]
