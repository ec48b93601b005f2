"""What each rank of `tfdist check` runs: a sum, and what the network between the ranks does.

    mpirun -np 2 python -m tfdist.cli.probe

Rank 0 prints one line, MARK and then JSON.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import statistics
import sys
import time
from typing import Any

import numpy as np

from tfdist.communicators import Communicator
from tfdist.communicators import create_communicator

MARK = "tfdist-probe "
_ROW_BYTES = 4096
_SUM_BYTES = 2**23
_REPEATS = 5


@dataclasses.dataclass(frozen=True)
class Interface:
    """A network interface of a host; the rate is 0 where the driver does not tell it."""

    name: str
    mtu_bytes: int
    rate_mbit: int


def read_interfaces(folder: pathlib.Path = pathlib.Path("/sys/class/net")) -> list[Interface]:
    """The interfaces of this host that are up, without loopback."""
    found = []
    for path in sorted(folder.glob("*")):
        if path.name != "lo" and _read(path / "operstate") == "up":
            found.append(Interface(path.name, int(_read(path / "mtu") or 0), max(0, int(_read(path / "speed") or 0))))
    return found


def probe(communicator: Communicator) -> dict[str, Any]:
    """Sums once for the result and again for the time; the same on all ranks.

    Returns:
        `engine`, the library that it `sums_by`, the number of `ranks`, `sum_is_right`, `sum_s` for `sum_bytes` (median of 5),
        `bytes_per_s` that leave a rank if it sums by a ring, and the interfaces of the `hosts` by their names.
    """
    import tensorflow as tf

    expected = communicator.size * (communicator.size + 1) / 2
    values = tf.fill([_SUM_BYTES // 4], np.float32(communicator.rank + 1))
    times_s = []
    for index in range(_REPEATS):
        communicator.gather_array(np.zeros([1], np.int64))
        begin_s = time.perf_counter()
        total = communicator.all_reduce([values], f"tfdist.probe.{index}")[0].numpy()
        times_s.append(time.perf_counter() - begin_s)
    sum_s = statistics.median(times_s)
    return {
        "engine": communicator.name,
        "sums_by": _library(communicator.name),
        "ranks": communicator.size,
        "sum_is_right": bool((total == expected).all()),
        "sum_s": sum_s,
        "sum_bytes": _SUM_BYTES,
        "bytes_per_s": 2 * (communicator.size - 1) / communicator.size * _SUM_BYTES / sum_s,
        "hosts": _gather_hosts(communicator),
    }


def _library(engine: str) -> str:
    """What the engine is built on."""
    if engine == "horovod":
        return "NCCL" if sys.modules["horovod.tensorflow"].nccl_built() else "Gloo"
    return sys.modules["mpi4py.MPI"].Get_library_version().split(",")[0] if engine == "mpi" else "nothing"


def _gather_hosts(communicator: Communicator) -> dict[str, list[dict[str, Any]]]:
    interfaces = [dataclasses.asdict(interface) for interface in read_interfaces()]
    row = json.dumps(interfaces).encode()
    if len(row) > _ROW_BYTES:
        row = b"[]"
    rows = communicator.gather_array(np.frombuffer(row.ljust(_ROW_BYTES), np.uint8)[None])
    names = communicator.gather_host_names()
    return {name: json.loads(row.tobytes()) for name, row in zip(names, rows, strict=True)}


def _read(path: pathlib.Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def main() -> None:
    """Runs on each rank."""
    communicator = create_communicator()
    found = probe(communicator)
    if communicator.rank == 0:
        sys.stdout.write(MARK + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
