"""Measures the constants of the cost model on the ranks that are there."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from tfdist.collectives.cost import Link
from tfdist.collectives.cost import Network
from tfdist.collectives.plan import Plan
from tfdist.collectives.plan import transfers
from tfdist.collectives.plan_runner import PlanRunner
from tfdist.communicators import Communicator
from tfdist.topology import Topology

_REPEATS = 5
_LONG = 2**20


def measure_network(communicator: Communicator, topology: Topology) -> Network:
    """Times messages between neighbours inside the hosts and across, and additions; all ranks get the same answer.

    ```
    inside    ranks 0 and 1 of each host exchange arrays, all hosts at once
    across    the first ranks of hosts 0 and 1, 2 and 3, ... exchange arrays
    latency = time of 1 element;      bytes per second = bytes of 2^20 elements / (their time - latency)
    ```

    Takes about 0.1 s on a wire of 1 Gbit/s. A level that the job does not have is taken to be as fast as the other one.

    Args:
        communicator: The engine; it must have a transport.
        topology: Where the ranks are.

    Raises:
        ValueError: If the engine has no transport, or the job has one rank.
    """
    if communicator.transport is None or communicator.size == 1:
        raise ValueError(
            "To measure needs several ranks that can exchange messages: start this with `mpirun`. Received: "
            f"communicator={communicator.name!r}, ranks={communicator.size}."
        )
    runner = PlanRunner(communicator.transport)
    inside = _pairs([ranks[:2] for ranks in topology.groups])
    masters = [ranks[0] for ranks in topology.groups]
    across = _pairs([tuple(masters[first : first + 2]) for first in range(0, len(masters), 2)])
    links = [_measure_link(communicator, runner, pairs) for pairs in (inside, across)]
    found = [link for link in links if link is not None]
    return Network(links[0] or found[0], links[1] or found[0], _measure_adding(communicator))


def _pairs(groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [group for group in groups if len(group) == 2]


def _measure_link(communicator: Communicator, runner: PlanRunner, pairs: list[tuple[int, ...]]) -> Link | None:
    if not pairs:
        return None
    latency_s = _slowest_s(communicator, _exchange(communicator, runner, pairs, 1))
    time_s = _slowest_s(communicator, _exchange(communicator, runner, pairs, _LONG))
    return Link(latency_s, 4 * _LONG / max(time_s - latency_s, 1e-9))


def _exchange(communicator: Communicator, runner: PlanRunner, pairs: list[tuple[int, ...]], length: int) -> Callable[[], None]:
    """Both ranks of each pair send `length` elements to the other."""
    first, second = np.array(pairs).T
    both = np.concatenate([first, second]), np.concatenate([second, first])
    starts = np.repeat([0, length], len(pairs))
    plan = Plan(communicator.size, 2 * length, lambda: iter([transfers(*both, starts, starts + length, add=False)]))
    rounds, array = runner.compile(plan, 4), np.zeros(2 * length, np.float32)
    return lambda: runner.run(rounds, array)


def _measure_adding(communicator: Communicator) -> float:
    array, other = np.zeros(_LONG, np.float32), np.zeros(_LONG, np.float32)
    return array.nbytes / max(_slowest_s(communicator, lambda: np.add(array, other, out=array)), 1e-9)


def _slowest_s(communicator: Communicator, action: Callable[[], object]) -> float:
    """The median time over some repeats, on the rank that took the longest."""
    action()
    times_s = []
    for _ in range(_REPEATS):
        communicator.gather_array(np.zeros(1, np.int64))
        begin = time.perf_counter()
        action()
        times_s.append(time.perf_counter() - begin)
    return float(communicator.gather_array(np.array([statistics.median(times_s)])).max())
