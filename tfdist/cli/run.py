"""`tfdist run`: starts a script on several processes."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shlex
import shutil
import sys
import tempfile
from typing import Annotated

import typer

from tfdist.cli.start import choose_launcher
from tfdist.cli.start import command
from tfdist.cli.start import Job
from tfdist.cli.start import LAUNCHERS
from tfdist.cli.start import read_hostfile

_ENGINES = {"mpirun": "mpi4py", "horovodrun": "horovod"}


def run(
    words: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGUMENTS]...", help="The script, and what it is given.")],
    processes: Annotated[int, typer.Option("-np", "--processes", min=0, help="Processes in all; 0: one for each slot of -H.")] = 0,
    hosts: Annotated[
        str, typer.Option("-H", "--hosts", help="Hosts, such as a,b or a:2,b:2; they need ssh without a password.")
    ] = "",
    hostfile: Annotated[pathlib.Path | None, typer.Option(help="A file of hosts, a line each: a slots=2.")] = None,
    launcher: Annotated[str, typer.Option(help="auto, mpirun, horovodrun or none.")] = "auto",
    interface: Annotated[str, typer.Option(help="The network interface between hosts, such as eth0.")] = "",
    ssh_port: Annotated[int, typer.Option(min=0, help="The port of sshd on the hosts.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the command as JSON and end.")] = False,
) -> None:
    """Start a script on several processes, by mpirun or horovodrun with what each needs.

    tfdist run -np 2 train.py --epochs 3
    """
    try:
        names = read_hostfile(hostfile.read_text()) if hostfile else tuple(filter(None, hosts.split(",")))
        job = Job(processes, names, tuple(words), interface, ssh_port)
        chosen = _choose(job, launcher)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    start, variables = job_command(job, chosen)
    if as_json:
        typer.echo(json.dumps({"launcher": chosen, "processes": job.size, "command": start, "environ": variables}, indent=1))
        return
    typer.echo("+ " + shlex.join([*(f"{name}={value}" for name, value in variables.items()), *start]), err=True)
    if not dry_run:
        remove_stale_session()
        try:
            os.execvpe(start[0], start, {**os.environ, **variables})
        except OSError as error:
            raise typer.BadParameter(f"{start[0]} does not start: {error.strerror}.") from error


def job_command(job: Job, launcher: str) -> tuple[list[str], dict[str, str]]:
    """The words and variables that start a job from this Python's environment."""
    program = find_program(launcher) or launcher
    return command(job, launcher, sys.executable, program, {"PATH": "", **os.environ}, root=os.geteuid() == 0)


def find_program(name: str) -> str | None:
    """A launcher's path: that of this Python's environment comes first."""
    return shutil.which(name, path=os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")]))


def installed() -> dict[str, bool]:
    """Whether each launcher is here with the package that it serves."""
    return {name: bool(find_program(name) and importlib.util.find_spec(module)) for name, module in _ENGINES.items()}


def remove_stale_session() -> None:
    """Removes what a killed mpirun of this process's id has left.

    Open MPI names the folder of its session by the id, and fails where there is one.
    """
    shutil.rmtree(pathlib.Path(tempfile.gettempdir(), f"ompi.{os.getpid()}"), ignore_errors=True)


def _choose(job: Job, launcher: str) -> str:
    if launcher == "auto":
        return choose_launcher(job, installed(), _count_gpus())
    if launcher not in LAUNCHERS:
        raise ValueError(f"The launcher must be auto or one of {', '.join(LAUNCHERS)}. Received: --launcher {launcher}.")
    if launcher == "none" and job.size > 1:
        raise ValueError(f"Without a launcher there is one process. Received: --launcher none, {job.size} processes.")
    return launcher


def _count_gpus() -> int:
    # Not by TensorFlow, which would take the GPUs' memory before the job does.
    return sum(1 for _ in pathlib.Path("/proc/driver/nvidia/gpus").glob("*"))
