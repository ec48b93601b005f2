"""Which algorithm is predicted to be the fastest."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from tfdist.collectives.algorithms import names_for
from tfdist.collectives.algorithms import PLANS
from tfdist.collectives.cost import Network
from tfdist.collectives.cost import Profile
from tfdist.collectives.cost import profile

# Hybrid is a rule of thumb between two of the others; by prediction each bucket gets the better one itself.
_CANDIDATES = tuple(name for name in PLANS if name != "hybrid")


@functools.lru_cache(maxsize=256)
def profile_of(name: str, hosts: tuple[tuple[int, ...], ...]) -> Profile:
    """The profile of an algorithm on some hosts."""
    size = sum(map(len, hosts))
    return profile(PLANS[name](hosts, 64 * size), hosts)


def predict_s(hosts: Sequence[Sequence[int]], size_bytes: int, network: Network) -> dict[str, float]:
    """The predicted time of each algorithm, for an array of some size.

    Example:
        >>> from tfdist.collectives.cost import Link
        >>> wire = Network(inside=Link(1e-5, 1e10), across=Link(1e-4, 1e8), add_bytes_per_s=1e10)
        >>> times_s = predict_s([[0, 1], [2, 3]], 10**8, wire)
        >>> min(times_s, key=times_s.get)
        'halving_doubling'
    """
    key = tuple(tuple(ranks) for ranks in hosts)
    return {name: profile_of(name, key).time_s(size_bytes, network) for name in names_for(hosts) if name in _CANDIDATES}


def choose(hosts: Sequence[Sequence[int]], size_bytes: int, network: Network) -> str:
    """The algorithm with the least predicted time; of equals, the first in `PLANS`."""
    times_s = predict_s(hosts, size_bytes, network)
    return min(times_s, key=lambda name: times_s[name])
