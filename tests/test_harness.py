"""The harness must see each way in which a rank can fail."""

import json
import os
import pathlib
import random
import signal
import subprocess
import time

import numpy as np
import psutil
import pytest

from tests.harness import Layout
from tests.harness import RanksFailed
from tests.harness import ROOT
from tests.harness import run_on_ranks
from tests.preloaded import preloaded
from tests.preloaded import Process
from tests.rank import this_rank

LAUNCHERS = pytest.mark.parametrize("launcher", ["mpi", "horovod"])


def passes():
    pass


def fails_on_rank_1():
    assert this_rank() != 1, "a wrong number"


def hangs_on_rank_1():
    if this_rank() == 1:
        pathlib.Path(os.environ["PID_FILE"]).write_text(str(os.getpid()))
        time.sleep(600)


def is_killed_on_rank_1():
    if this_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(20)


def exits_on_rank_1():
    if this_rank() == 1:
        os._exit(3)


def returns_nothing_on_rank_1():
    if this_rank() == 1:
        os._exit(0)


def warns():
    import warnings

    warnings.warn("something", stacklevel=1)


@LAUNCHERS
def test_all_ranks_pass(launcher):
    run_on_ranks(passes, Layout(2, 1, launcher), timeout_s=60)


@LAUNCHERS
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails_on_rank_1, "(?s)Rank 1 failed:.*a wrong number"),
        (is_killed_on_rank_1, r"Rank 1 was killed by signal 9 \(SIGKILL\)"),
        (exits_on_rank_1, "Rank 1 exited with code 3"),
        (returns_nothing_on_rank_1, "Rank 1 ended before the test function did"),
    ],
)
def test_failure_of_one_rank_is_named(launcher, function, message):
    with pytest.raises(RanksFailed, match=message):
        run_on_ranks(function, Layout(2, 1, launcher), timeout_s=60)


def ends(pid):
    """Whether a process that was killed is gone within a few seconds."""
    try:
        psutil.Process(pid).wait(5)
    except psutil.NoSuchProcess:
        return True
    except psutil.TimeoutExpired:
        return False
    return True


@LAUNCHERS
def test_hang_of_one_rank_is_named_and_ended(launcher, tmp_path):
    with pytest.raises(RanksFailed, match="Rank 1 hung: it did not end within 5 s"):
        run_on_ranks(hangs_on_rank_1, Layout(2, 1, launcher), timeout_s=5, environ={"PID_FILE": str(tmp_path / "pid")})
    assert ends(int((tmp_path / "pid").read_text()))


def keeps_to_itself():
    assert os.environ["TMPDIR"] == os.getcwd()
    assert os.getcwd() != str(ROOT)
    numbers = {"numpy": np.random.random(), "python": random.random()}
    pathlib.Path(os.environ["NUMBERS"], str(this_rank())).write_text(json.dumps(numbers))


@LAUNCHERS
def test_ranks_share_neither_folder_nor_random_numbers(launcher, tmp_path):
    """Though they are forked from one process."""
    run_on_ranks(keeps_to_itself, Layout(2, 1, launcher), timeout_s=60, environ={"NUMBERS": str(tmp_path)})
    first, second = (json.loads((tmp_path / rank).read_text()) for rank in "01")
    assert first["numpy"] != second["numpy"]
    assert first["python"] != second["python"]


def test_a_process_that_nobody_waits_for_is_ended(tmp_path):
    process = Process(preloaded(), "tests.preloaded:execute", ["sleep", "600"], tmp_path / "log", dict(os.environ))
    with pytest.raises(TimeoutError, match=r"did not end within 0\.1 s"):
        process.wait(0.1)
    process.kill()
    assert process.wait(10) == -signal.SIGKILL


def starts_another_program():
    pid = subprocess.Popen(["sleep", "600"]).pid
    pathlib.Path(os.environ["PID_FILE"]).write_text(str(pid))
    time.sleep(600)


def test_what_a_hanging_rank_has_started_is_ended_too(tmp_path):
    with pytest.raises(RanksFailed, match="Rank 0 hung"):
        run_on_ranks(starts_another_program, Layout(), timeout_s=3, environ={"PID_FILE": str(tmp_path / "pid")})
    assert ends(int((tmp_path / "pid").read_text()))


def test_a_warning_is_an_error():
    with pytest.raises(RanksFailed, match="something"):
        run_on_ranks(warns, Layout(), timeout_s=60)


def prints_and_exits():
    print("the last words", flush=True)
    os._exit(1)


def test_the_report_shows_what_ranks_printed():
    with pytest.raises(RanksFailed, match="(?s)--- 0.log.*the last words"):
        run_on_ranks(prints_and_exits, Layout(), timeout_s=60)
