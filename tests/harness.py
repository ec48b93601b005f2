"""Runs a test function on several ranks, and fails if any of them asserts, hangs, is killed or exits with an error.

    @on_ranks(Layout(2, devices=2, launcher="mpi"))
    def test_something():
        strategy = tfdist.HierarchicalStrategy()      # runs in each of two processes, with two logical CPUs each
        assert strategy.size == 2

    pytest ── launcher (mpirun, horovodrun, or none) ── supervisor of rank r ── the function
                                                         writes how it ended     writes its result

The supervisor outlives a function that is killed, so that the report names the rank and the signal. The function's process and
horovodrun are forked from one that has imported TensorFlow (preloaded.py), else most of the time of the tests would be imports.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests import rank as rank_program
from tests.preloaded import preloaded
from tests.preloaded import Process

ROOT = pathlib.Path(__file__).parent.parent
_LOG_TAIL = 60


class Layout(NamedTuple):
    """How many processes and devices, and what starts them."""

    processes: int = 1
    devices: int = 1
    launcher: str = "none"

    def __str__(self) -> str:
        return f"{self.launcher}-{self.processes}x{self.devices}"


class RanksFailed(AssertionError):
    """Some rank did not pass; the message says which, and how."""


def on_ranks(*layouts: Layout, timeout_s: float = 240.0) -> Callable[[Callable[[], None]], Callable[[Layout], None]]:
    """Makes a test of a function, once for each layout; the function runs on every rank."""

    def decorate(function: Callable[[], None]) -> Callable[[Layout], None]:
        @pytest.mark.parametrize("layout", layouts, ids=str)
        @pytest.mark.timeout(timeout_s + 60)
        def test(layout: Layout) -> None:
            run_on_ranks(function, layout, timeout_s)

        functools.update_wrapper(test, function, assigned=("__name__", "__doc__", "__module__"), updated=())
        del test.__wrapped__
        test.on_rank = function
        return test

    return decorate


def run_on_ranks(function: Callable[[], None], layout: Layout, timeout_s: float, environ: dict[str, str] | None = None) -> str:
    """Runs a function of a test module on all ranks of a layout.

    Returns:
        The output of the launcher and all ranks.

    Raises:
        RanksFailed: If any rank did not pass.
    """
    skip_unless_installed(layout.launcher)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tfdist-ranks-"))
    try:
        rank = [sys.executable, rank_program.__file__, preloaded(), str(folder), function.__module__, function.__name__]
        environ = launch_environ(folder) | {"TFDIST_TEST_DEVICES": str(layout.devices)} | (environ or {})
        in_time = _launch([*launch_command(layout), *rank], folder, timeout_s, environ)
        failures = _failures(folder, layout, in_time, timeout_s)
        output = _output(folder)
        if failures:
            raise RanksFailed("\n".join([*failures, *_tails(folder)]))
        return output
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def skip_unless_installed(launcher: str) -> None:
    """Skips a test whose launcher is not there."""
    if launcher != "none" and shutil.which(_PROGRAMS[launcher], path=_path()) is None:
        pytest.skip(f"{_PROGRAMS[launcher]} is not installed in this environment")


def launch_command(layout: Layout) -> list[str]:
    """The launcher's words before the program."""
    return {
        "none": [],
        "mpi": ["mpirun", "--oversubscribe", "-np", str(layout.processes)],
        "horovod": ["horovodrun", "-np", str(layout.processes)],
    }[layout.launcher]


def launch_environ(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The environment of a launcher: this Python's programs first, no launcher around it, temporary files in the folder.

    Open MPI names its session by the process id, and fails where a killed one of the same id has left its files.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMIX_", "HOROVOD_"))}
    return environ | {
        "PATH": _path(),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TMPDIR": str(folder),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


_PROGRAMS = {"mpi": "mpirun", "horovod": "horovodrun"}


def _path() -> str:
    return os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])


def _launch(command: list[str], folder: pathlib.Path, timeout_s: float, environ: dict[str, str]) -> set[int]:
    """Runs the launcher, ends what is left after the time limit, and returns the ranks that had ended by then."""
    log = folder / "launcher.log"
    if command[0] == "horovodrun":
        launcher = Process(preloaded(), "horovod.runner.launch:run_commandline", command[1:], log, environ)
    else:
        launcher = Process(preloaded(), "tests.preloaded:execute", command, log, environ)
    try:
        launcher.wait(timeout_s)
    except TimeoutError:
        pass
    in_time = {int(file.stem) for file in folder.glob("*.exit")}
    _end(launcher, folder)
    return in_time


def _end(launcher: Process, folder: pathlib.Path) -> None:
    for file in folder.glob("*.pid"):
        if not file.with_suffix(".exit").exists():
            _kill(int(file.read_text()))
    launcher.kill()
    launcher.wait()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _failures(folder: pathlib.Path, layout: Layout, in_time: set[int], timeout_s: float) -> list[str]:
    """One line for each rank that did not pass, the first to fail first."""
    ended = {rank: _read_exit(folder / f"{rank}.exit") for rank in range(layout.processes)}
    lines = []
    for rank, (_, code) in sorted(ended.items(), key=lambda item: item[1][0]):
        result = folder / f"{rank}.result"
        if not (folder / f"{rank}.pid").exists():
            lines.append(f"Rank {rank} never started.")
        elif rank not in in_time:
            lines.append(f"Rank {rank} hung: it did not end within {timeout_s:g} s.")
        elif code < 0:
            lines.append(f"Rank {rank} was killed by signal {-code} ({signal.Signals(-code).name}).")
        elif result.exists() and json.loads(result.read_text()):
            lines.append(f"Rank {rank} failed:\n{json.loads(result.read_text())}")
        elif code:
            lines.append(f"Rank {rank} exited with code {code}.")
        elif not result.exists():
            lines.append(f"Rank {rank} ended before the test function did.")
    return lines


def _read_exit(file: pathlib.Path) -> tuple[float, int]:
    if not file.exists():
        return float("inf"), 0
    moment, code = file.read_text().split()
    return float(moment), int(code)


def _tails(folder: pathlib.Path) -> list[str]:
    """The end of each log, but of those ranks whose traceback is in the report already."""
    told = {file.stem for file in folder.glob("*.result") if json.loads(file.read_text())}
    logs = [log for log in sorted(folder.glob("*.log")) if log.stem not in told]
    return [f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL:]) for log in logs]


def _output(folder: pathlib.Path) -> str:
    return "\n".join(log.read_text(errors="replace") for log in sorted(folder.glob("*.log")))
