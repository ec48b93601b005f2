"""Hosts x processes x devices, as data."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Topology:
    """Where each rank runs and how many devices it holds.

    ```
    hosts=("a", "a", "b", "b"), devices=(1, 1, 1, 1)      two hosts, two processes each, one device a process
    hosts=("a", "b"),           devices=(2, 2)            two hosts, one process each, two devices a process
    ```

    Args:
        hosts: The host name of each rank, by rank.
        devices: The number of devices of each rank, by rank; each at least 1.

    Example:
        >>> Topology(hosts=("a", "a", "b"), devices=(1, 1, 1)).local_rank(1)
        1
    """

    hosts: tuple[str, ...]
    devices: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of processes."""
        return len(self.hosts)

    @property
    def num_hosts(self) -> int:
        """The number of different hosts."""
        return len(set(self.hosts))

    @property
    def groups(self) -> list[tuple[int, ...]]:
        """The ranks of each host, in the order of the hosts' first ranks."""
        return [self.ranks_on(host) for host in dict.fromkeys(self.hosts)]

    @property
    def is_even(self) -> bool:
        """Whether every host runs the same number of processes."""
        return len({len(ranks) for ranks in self.groups}) == 1

    @property
    def num_replicas(self) -> int:
        """The number of devices of all ranks."""
        return sum(self.devices)

    def ranks_on(self, host: str) -> tuple[int, ...]:
        """The ranks that run on one host, ascending."""
        return tuple(rank for rank, name in enumerate(self.hosts) if name == host)

    def local_rank(self, rank: int) -> int:
        """The place of a rank among those of its host."""
        return self.ranks_on(self.hosts[rank]).index(rank)

    def local_size(self, rank: int) -> int:
        """The number of ranks on this rank's host."""
        return len(self.ranks_on(self.hosts[rank]))

    def __str__(self) -> str:
        processes = sorted({self.local_size(rank) for rank in range(self.size)})
        devices = sorted(set(self.devices))
        return " x ".join(
            (
                _count(self.num_hosts, "host"),
                _count(processes, "process", "processes"),
                _count(devices, "device"),
            )
        )


def _count(number: int | list[int], noun: str, plural: str | None = None) -> str:
    if isinstance(number, list):
        number_text = "/".join(map(str, number))
        one = number == [1]
    else:
        number_text, one = str(number), number == 1
    return f"{number_text} {noun if one else plural or noun + 's'}"


def device_share(count: int, local_rank: int, local_size: int) -> range:
    """The indices of a host's devices that one of its processes gets.

    Args:
        count: The devices of the host; at least `local_size`.
        local_rank: The place of the process on its host, from 0.
        local_size: The processes on the host.

    Returns:
        A range of device indices. The shares of all local ranks are disjoint, cover all devices and differ by one at the most.

    Raises:
        ValueError: If there are fewer devices than processes.

    Example:
        >>> [list(device_share(5, rank, 2)) for rank in range(2)]
        [[0, 1], [2, 3, 4]]
    """
    if count < local_size:
        raise ValueError(
            f"Each process of a host needs a GPU of its own, or the processes fight for its memory. Start at most {count} "
            f"on this host, or pass `devices=`. Received: processes={local_size}, GPUs={count}."
        )
    return range(local_rank * count // local_size, (local_rank + 1) * count // local_size)
