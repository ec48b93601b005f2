"""Which way of summing a bucket fits an engine, a topology and what the user wants."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence

from tfdist.collectives.algorithms import names_for
from tfdist.collectives.algorithms import PLANS
from tfdist.collectives.background_sum import BackgroundSum
from tfdist.collectives.bucket_sum import BucketSum
from tfdist.collectives.choice import choose
from tfdist.collectives.engine_sum import EngineSum
from tfdist.collectives.grouped_sum import GroupedSum
from tfdist.collectives.measure import measure_network
from tfdist.collectives.packed_sum import PackedSum
from tfdist.collectives.plan import Plan
from tfdist.collectives.plan_runner import PlanRunner
from tfdist.collectives.planned_group import PlannedGroup
from tfdist.collectives.planned_sum import PlannedSum
from tfdist.communicators import Communicator
from tfdist.communicators.group import Group
from tfdist.compression import COMPRESSORS
from tfdist.topology import Topology

_log = logging.getLogger(__name__)

ALGORITHMS = ("auto", "engine", *PLANS)


def create_sum(communicator: Communicator, topology: Topology, algorithm: str, on_gpus: bool) -> BucketSum:
    """The exact sum.

    Args:
        communicator: The engine.
        topology: Where the ranks are.
        algorithm: One of `ALGORITHMS`.
        on_gpus: Whether the values are on GPUs.

    Raises:
        ValueError: If the engine, or the topology, has no such algorithm.
    """
    _check(communicator, topology, algorithm)
    if communicator.transport is None:
        return _create_engine_sum(communicator, topology, algorithm, on_gpus)
    if algorithm == "engine":
        return PackedSum(communicator)

    name_for = _chooser(communicator, topology) if algorithm == "auto" else lambda size_bytes: algorithm

    def make_plan(length: int, itemsize: int) -> Plan:
        return PLANS[name_for(length * itemsize)](topology.groups, length)

    return BackgroundSum(PlannedSum(PlanRunner(communicator.transport), make_plan))


def _create_engine_sum(communicator: Communicator, topology: Topology, algorithm: str, on_gpus: bool) -> BucketSum:
    if on_gpus and algorithm != "hierarchical":
        # NCCL knows the hosts itself, and nothing has to leave the GPUs.
        return EngineSum(communicator)
    nested = communicator.has_groups and 1 < topology.num_hosts < topology.size and topology.is_even
    if algorithm == "hierarchical" or (algorithm == "auto" and nested):
        return GroupedSum(*create_groups(communicator, topology))
    return PackedSum(communicator)


def _chooser(communicator: Communicator, topology: Topology) -> Callable[[int], str]:
    """Names the algorithm for an array of some bytes, the same on all ranks."""
    if communicator.size <= 2:
        return lambda size_bytes: "ring"  # With two ranks no other plan sends less, or in fewer rounds.
    network = measure_network(communicator, topology)
    _log.info("Measured %s", network)
    return lambda size_bytes: choose(topology.groups, size_bytes, network)


def create_compressed_sum(communicator: Communicator, topology: Topology, compression: str) -> BucketSum:
    """The sum that is compressed between hosts."""
    return GroupedSum(*create_groups(communicator, topology), COMPRESSORS[compression]())


def create_groups(communicator: Communicator, topology: Topology) -> tuple[Group, Group]:
    """The ranks of this host, and those with this rank's place on each host; uneven hosts count as one rank each."""
    if topology.is_even:
        inside: Sequence[Sequence[int]] = topology.groups
    else:
        inside = [[rank] for rank in range(topology.size)]
    across = [list(ranks) for ranks in zip(*inside, strict=True)]
    return _create_group(communicator, inside), _create_group(communicator, across)


def _create_group(communicator: Communicator, groups: Sequence[Sequence[int]]) -> Group:
    if communicator.transport is None:
        return communicator.group(groups)
    return PlannedGroup(communicator.transport.among(groups))


def _check(communicator: Communicator, topology: Topology, algorithm: str) -> None:
    if communicator.size == 1:
        return
    known = ["auto", "engine", *names_for(topology.groups)]
    if communicator.transport is None:
        known = [name for name in known if name in ("auto", "engine", "hierarchical")]
    if algorithm not in known:
        raise ValueError(
            f"The engine {communicator.name!r} on {topology} can sum by {known}; plans need communicator='mpi', and 'hierarchical' "
            f"the same number of processes on each host. Received: algorithm={algorithm!r}."
        )
