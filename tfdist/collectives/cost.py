"""How long a plan takes, by a model with few constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from tfdist.collectives.plan import Plan


@dataclasses.dataclass(frozen=True)
class Link:
    """What a message costs on one level: inside a host, or across.

    Args:
        latency_s: The time of a round whose messages are empty, in seconds.
        bytes_per_s: What passes in one direction while as much passes in the other: per rank inside, per host across.
    """

    latency_s: float
    bytes_per_s: float


@dataclasses.dataclass(frozen=True)
class Network:
    """The constants of the model.

    Args:
        inside: Between ranks of one host.
        across: Between hosts.
        add_bytes_per_s: What a rank adds of received data, in bytes a second.
        chunk_bytes: What is added at once; the rest of an addition is hidden behind receiving. Defaults to 1 MiB.
    """

    inside: Link
    across: Link
    add_bytes_per_s: float
    chunk_bytes: int = 2**20

    def to_dict(self) -> dict[str, object]:
        """Plain values, for a file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, dict[str, float]]) -> Network:
        """The network that `to_dict` describes.

        Raises:
            ValueError: If a value is missing, unknown or not positive.
        """
        try:
            links = {name: Link(**values[name]) for name in ("inside", "across")}
            network = cls(**{**values, **links})  # type: ignore[arg-type]
            rates = (network.inside.bytes_per_s, network.across.bytes_per_s, network.add_bytes_per_s, network.chunk_bytes)
            if min(rates) <= 0 or min(network.inside.latency_s, network.across.latency_s) < 0:
                raise ValueError("rates must be positive and latencies not negative")
        except (KeyError, TypeError, ValueError) as error:
            wanted = "inside and across (latency_s, bytes_per_s each), add_bytes_per_s and perhaps chunk_bytes"
            raise ValueError(f"A network has {wanted}: {error}. Received: {values}.") from error
        return network


@dataclasses.dataclass(frozen=True)
class Profile:
    """What the busiest rank, or host, does in each round of a plan, as parts of the array's length.

    Args:
        inside: What one rank sends, or receives, inside its host.
        across: What all ranks of one host send, or receive, across.
        added: What one rank adds.
    """

    inside: np.ndarray
    across: np.ndarray
    added: np.ndarray

    def time_s(self, size_bytes: float, network: Network) -> float:
        """The predicted time of the plan for an array of some size.

        ```
        a round:  latency + max(n_in / beta_in, n_out / beta_out, n_add / gamma) + min(n_add, chunk) / gamma
        a plan:   the sum over its rounds
        ```

        Args:
            size_bytes: The array's size.
            network: The constants.

        Reference:
            Thakur, Rabenseifner and Gropp 2005, section 3: alpha, beta and gamma. Here there is one alpha and beta a level, ranks
            of a host share its link, and all but the last chunk of an addition is hidden.
        """
        latency_s = np.where(self.across > 0, network.across.latency_s, np.where(self.inside > 0, network.inside.latency_s, 0))
        added = self.added * size_bytes
        moving_s = np.maximum(
            self.inside * size_bytes / network.inside.bytes_per_s, self.across * size_bytes / network.across.bytes_per_s
        )
        moving_s = np.maximum(moving_s, added / network.add_bytes_per_s)
        return float((latency_s + moving_s + np.minimum(added, network.chunk_bytes) / network.add_bytes_per_s).sum())


def profile(plan: Plan, hosts: Sequence[Sequence[int]]) -> Profile:
    """Measures a plan; make it for at least as many elements as ranks, or rounds look shorter than they are.

    Args:
        plan: The plan.
        hosts: The ranks of each host.

    Example:
        >>> from tfdist.collectives.ring import ring
        >>> profile(ring(4, 4), [[0, 1], [2, 3]]).across.tolist()
        [0.25, 0.25, 0.25, 0.25, 0.25, 0.25]
    """
    host_of = np.empty(plan.size, np.int64)
    for number, ranks in enumerate(hosts):
        host_of[list(ranks)] = number
    rows = [_busiest(transfers, host_of, plan.size, len(hosts)) for transfers in plan]
    columns = np.array(rows, np.float64).reshape(-1, 3).T / max(1, plan.length)
    return Profile(*columns)


def _busiest(transfers: np.ndarray, host_of: np.ndarray, size: int, num_hosts: int) -> tuple[float, float, float]:
    lengths = transfers["stop"] - transfers["start"]
    source, destination = transfers["source"], transfers["destination"]
    leaves = host_of[source] != host_of[destination]
    inside, across, added = lengths * ~leaves, lengths * leaves, lengths * transfers["add"]
    return (
        max(_most(source, inside, size), _most(destination, inside, size)),
        max(_most(host_of[source], across, num_hosts), _most(host_of[destination], across, num_hosts)),
        _most(destination, added, size),
    )


def _most(place: np.ndarray, amount: np.ndarray, count: int) -> float:
    return float(np.bincount(place, amount, count).max())


def overlapped_s(ready_s: Sequence[float], times_s: Sequence[float]) -> float:
    """When the last of several buckets is summed that are sent one after the other, each as soon as it is ready.

    Args:
        ready_s: When each bucket is ready, in the order of sending.
        times_s: How long each takes.

    Example:
        >>> overlapped_s([1.0, 2.0], [3.0, 1.0])
        5.0
    """
    end_s = 0.0
    for ready, time in zip(ready_s, times_s, strict=True):
        end_s = max(end_s, ready) + time
    return end_s
