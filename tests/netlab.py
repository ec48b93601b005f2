"""Test hosts on one machine, joined by links of a chosen rate.

    with Lab(hosts=2, rate_mbit=1000) as lab:
        lab.run(["mpirun", *lab.mpirun_options(processes_per_host=1), "python", "train.py"])

    host 0 ── eth0 ──┐                          each host is a network namespace with a name, an address and a hosts file of
                     ├── bridge (a namespace)   its own; both ends of each link pass at most `rate_mbit` megabits a second
    host 1 ── eth0 ──┘

Needs root and iproute2. Nothing of it is seen outside: the bridge and all addresses live in namespaces of this process's name.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

_NETNS = pathlib.Path("/etc/netns")
# A token bucket passes this much at once. It must hold the largest packet that the kernel hands over whole, 64 KiB.
_BURST_BYTES = 128 * 1024
_QUEUE_MS = 50

# Stands for ssh: leaves out the options, before and after the host, and runs the rest there.
_SSH = """#!/bin/sh
host=
while [ $# -gt 0 ]; do
    case $1 in
        -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;;
        -*) shift ;;
        *) [ -z "$host" ] || break; host=$1; shift ;;
    esac
done
exec ip netns exec "$host" unshare --uts sh -c 'hostname "$0"; exec sh -c "$1"' "$host" "$*"
"""


def why_not() -> str | None:
    """Why test hosts cannot be made here; None if they can."""
    if os.geteuid() != 0:
        return "test hosts need root, to make network namespaces"
    missing = [program for program in ("ip", "tc", "unshare") if shutil.which(program) is None]
    if missing:
        return f"test hosts need iproute2 and util-linux: {', '.join(missing)} not found"
    probe = f"tfdist-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return None if made.returncode == 0 else f"no network namespace can be made here: {made.stderr.strip()}"


class Lab:
    """Some test hosts, from `with` to its end.

    Args:
        hosts: How many.
        rate_mbit: The rate of each host's link in each direction, in 10^6 bits a second; None for as fast as the machine is.

    Attributes:
        hosts: Their names.
    """

    def __init__(self, hosts: int = 2, rate_mbit: float | None = None) -> None:
        self.hosts = [f"tfdist-{os.getpid()}-{index}" for index in range(hosts)]
        self._bridge = f"tfdist-{os.getpid()}-b"
        self._rate_mbit = rate_mbit
        self._before: Any = None

    def __enter__(self) -> Lab:
        if threading.current_thread() is threading.main_thread():
            # What ends this program politely must not leave the hosts behind.
            self._before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="tfdist-lab-"))
        ssh = self._folder / "ssh"
        ssh.write_text(_SSH)
        ssh.chmod(0o755)
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def set_rate(self, rate_mbit: float | None) -> None:
        """Changes the rate of all links."""
        self._rate_mbit = rate_mbit
        for index, host in enumerate(self.hosts):
            self._shape(host, "eth0")
            self._shape(self._bridge, f"port{index}")

    def address(self, host: str) -> str:
        """The address of a host's link."""
        return _address(self.hosts.index(host))

    def mpirun_options(self, processes_per_host: int) -> list[str]:
        """What Open MPI must be told to start on all hosts."""
        options = ["--host", ",".join(f"{host}:{processes_per_host}" for host in self.hosts)]
        options += ["--map-by", f"ppr:{processes_per_host}:node", "--bind-to", "none"]
        return [*options, "--prtemca", "plm_ssh_agent", str(self._folder / "ssh"), "--mca", "btl_tcp_if_include", "eth0"]

    def horovodrun_options(self, processes_per_host: int) -> list[str]:
        """What horovodrun must be told to start on all hosts."""
        count = processes_per_host * len(self.hosts)
        hosts = ",".join(f"{host}:{processes_per_host}" for host in self.hosts)
        return ["--disable-cache", "-np", str(count), "-H", hosts, "--network-interfaces", "eth0"]

    def command(self, words: Sequence[str], host: int = 0) -> list[str]:
        """A command as it must be started to run on one host."""
        inside = 'hostname "$0"; exec "$@"'
        return ["ip", "netns", "exec", self.hosts[host], "unshare", "--uts", "sh", "-c", inside, self.hosts[host], *words]

    def environ(self) -> dict[str, str]:
        """The environment of a launcher: the stand-in for ssh comes first, temporary files go with the hosts."""
        return {**os.environ, "PATH": f"{self._folder}{os.pathsep}{os.environ['PATH']}", "TMPDIR": str(self._folder)}

    def run(self, words: Sequence[str], timeout_s: float, environ: dict[str, str] | None = None) -> str:
        """Runs a command on the first host; what it started is ended when it ends, or after the time limit.

        Returns:
            Its output.

        Raises:
            RuntimeError: If it fails or does not end in time; the message has the end of its output.
        """
        process = subprocess.Popen(
            self.command(words),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            errors="replace",
            env={**self.environ(), **(environ or {})},
        )
        try:
            output, _ = process.communicate(timeout=timeout_s)
            how = f"ended with code {process.returncode}"
        except subprocess.TimeoutExpired:
            self.end_processes()
            output, _ = process.communicate()
            how = f"did not end within {timeout_s:g} s"
        self.end_processes()
        if process.returncode:
            raise RuntimeError(f"{' '.join(words[:4])} ... {how}:\n{output[-4000:]}")
        return output

    def end_processes(self) -> None:
        """Ends whatever still runs on a host."""
        for host in self.hosts:
            listed = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=False).stdout
            for process in listed.split():
                try:
                    os.kill(int(process), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def _make(self) -> None:
        for name in (self._bridge, *self.hosts):
            _ip("netns", "add", name)
        _ip("-n", self._bridge, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "bridge", "up")
        names = "127.0.0.1 localhost\n" + "".join(f"{_address(i)} {host}\n" for i, host in enumerate(self.hosts))
        for index, host in enumerate(self.hosts):
            port = f"port{index}"
            _ip("-n", self._bridge, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", self._bridge, "link", "set", port, "master", "bridge", "up")
            _ip("-n", host, "address", "add", f"{_address(index)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", host, "link", "set", device, "up")
            # Linux's default, since a machine may be set to another one, and how fast a link is filled depends on it.
            _ip("-n", host, "route", "change", "10.231.0.0/24", "dev", "eth0", "congctl", "cubic")
            (_NETNS / host).mkdir(parents=True)
            (_NETNS / host / "hosts").write_text(names)
        self.set_rate(self._rate_mbit)

    def _shape(self, namespace: str, device: str) -> None:
        subprocess.run(["tc", "-n", namespace, "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
        if self._rate_mbit is not None:
            bucket = ["tbf", "rate", f"{self._rate_mbit}mbit", "burst", str(_BURST_BYTES), "latency", f"{_QUEUE_MS}ms"]
            _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", *bucket)

    def _remove(self) -> None:
        self.end_processes()
        for name in (*self.hosts, self._bridge):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            shutil.rmtree(_NETNS / name, ignore_errors=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _address(index: int) -> str:
    return f"10.231.0.{index + 1}"


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} failed: {done.stderr.strip()}")
