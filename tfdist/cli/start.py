"""What words start a job: from numbers and names to a command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence

LAUNCHERS = ("none", "mpirun", "horovodrun")
# What a script may need on other hosts; horovodrun takes the whole environment along by itself.
_CARRIED = ("CUDA_", "HOROVOD_", "KERAS_", "LD_LIBRARY_PATH", "NCCL_", "OMP_", "PATH", "PYTHON", "TF_", "TFDIST_", "XLA_")


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to run where.

    Args:
        processes: How many processes in all; 0 for one a host, or one for each slot of hosts given as "a:2".
        hosts: Names, or names and slots, such as ("a:2", "b:2"); empty for this machine.
        words: The script and its arguments.
        interface: The network interface for all traffic between hosts, or "" to let the launcher choose.
        ssh_port: Where sshd listens on the hosts, or 0 for ssh's own choice.
    """

    processes: int
    hosts: tuple[str, ...]
    words: tuple[str, ...]
    interface: str = ""
    ssh_port: int = 0

    def __post_init__(self) -> None:
        if self.words[0].startswith("-") and self.words[0] not in ("-m", "-c"):
            raise ValueError(f"There is no such option. Received: {self.words[0]}.")
        if self.processes < 0:
            raise ValueError(f"The number of processes must be positive. Received: -np {self.processes}.")
        for host in self.hosts:
            name, _, slots = host.partition(":")
            if not name or (slots and not (slots.isdecimal() and int(slots))):
                raise ValueError(f"A host is a name, or a name and how many processes it takes, as a:2. Received: -H {host}.")
        room = sum(count for _, count in self.slots)
        if self.hosts and room < self.processes:
            raise ValueError(f"The hosts take {room} processes in all. Received: -np {self.processes}, -H {','.join(self.hosts)}.")

    @property
    def slots(self) -> list[tuple[str, int]]:
        """Each host and how many processes it takes; those given without a number share the processes evenly."""
        even = -(-self.processes // len(self.hosts)) if self.hosts else 0
        pairs = [host.partition(":") for host in self.hosts]
        return [(name, int(slots) if slots else max(even, 1)) for name, _, slots in pairs]

    @property
    def size(self) -> int:
        """The number of processes that will run."""
        return self.processes or sum(count for _, count in self.slots) or 1


def read_hostfile(text: str) -> tuple[str, ...]:
    """The hosts of a file as MPI's launchers read it: a line each, `a`, `a slots=2` or `a:2`; `#` begins a comment.

    Example:
        >>> read_hostfile("a slots=2  # the first")
        ('a:2',)
    """
    lines = [line.partition("#")[0].split() for line in text.splitlines()]
    hosts = []
    for name, *settings in filter(None, lines):
        slots = [setting.removeprefix("slots=") for setting in settings if setting.startswith("slots=")]
        hosts.append(f"{name}:{slots[0]}" if slots else name)
    return tuple(hosts)


def choose_launcher(job: Job, works: Mapping[str, bool], gpus: int) -> str:
    """The launcher for a job: none for one process here; Horovod's on GPUs, since its NCCL sums there; else MPI's, which is faster.

    Args:
        job: What is to run.
        works: Whether each of "mpirun" and "horovodrun" is installed with its engine.
        gpus: The number of GPUs of this machine.

    Raises:
        ValueError: If several processes are asked for and neither is installed.
    """
    if job.size == 1 and not job.hosts:
        return "none"
    order = ("horovodrun", "mpirun") if gpus else ("mpirun", "horovodrun")
    for launcher in order:
        if works.get(launcher):
            return launcher
    raise ValueError(
        "Several processes need a launcher and its engine. Install MPI with `pip install 'tfdist[mpi]'`, or build Horovod's wheel "
        f"with docker/horovod_wheel.sh; `tfdist check` says what is here. Received: {job.size} processes."
    )


def command(
    job: Job, launcher: str, python: str, program: str, environ: Mapping[str, str], root: bool = False
) -> tuple[list[str], dict[str, str]]:
    """The words that start a job, and the environment variables to set besides.

    Args:
        job: What is to run.
        launcher: One of `LAUNCHERS`.
        python: The interpreter for the script.
        program: The launcher's path. Open MPI finds its own files on the other hosts by it.
        environ: The environment, for what must be carried to other hosts.
        root: Whether the user is root, whom mpirun must be told to allow.

    Example:
        >>> command(Job(2, ("a", "b"), ("train.py",)), "horovodrun", "python", "horovodrun", {})[0]
        ['horovodrun', '--disable-cache', '-np', '2', '-H', 'a:1,b:1', 'python', 'train.py']
    """
    script = script_words(job.words, python)
    if launcher == "none":
        return script, {}
    if launcher == "horovodrun":
        return [program, "--disable-cache", "-np", str(job.size), *_horovod_hosts(job), *script], {}
    # Open MPI ties a process to one core where there are few of them, and TensorFlow's threads would share it.
    words = [program, "-np", str(job.size), "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"]
    variables = {name: "1" for name in ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM") if root}
    return [*words, *_mpi_hosts(job, environ), *script], variables


def script_words(words: Sequence[str], python: str) -> list[str]:
    """The script as a command: `x.py` and `-m module` by this Python, anything else as it is."""
    return [python, *words] if words[0].endswith(".py") or words[0] in ("-m", "-c") else list(words)


def _horovod_hosts(job: Job) -> list[str]:
    words = ["-H", _join(job)] if job.hosts else []
    words += ["--network-interfaces", job.interface] if job.interface else []
    return words + (["-p", str(job.ssh_port)] if job.ssh_port else [])


def _mpi_hosts(job: Job, environ: Mapping[str, str]) -> list[str]:
    if not job.hosts:
        return []
    words = ["--host", _join(job)]
    if job.interface:
        words += ["--mca", "btl_tcp_if_include", job.interface, "--prtemca", "prte_if_include", job.interface]
    if job.ssh_port:
        words += ["--prtemca", "plm_ssh_args", f"-p {job.ssh_port}"]
    for name in sorted(environ):
        if name.startswith(_CARRIED) or name in _CARRIED:
            words += ["-x", name]
    return words


def _join(job: Job) -> str:
    return ",".join(f"{name}:{slots}" for name, slots in job.slots)
