"""The harness must see each way in which a rank can fail."""

import os
import signal
import subprocess
import time

import pytest

from tests.harness import Layout
from tests.harness import RanksFailed
from tests.harness import run_on_ranks
from tests.rank import this_rank

LAUNCHERS = pytest.mark.parametrize("launcher", ["mpi", "horovod"])


def passes():
    pass


def fails_on_rank_1():
    assert this_rank() != 1, "a wrong number"


def hangs_on_rank_1():
    time.sleep(600 if this_rank() == 1 else 0)


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


@LAUNCHERS
def test_hang_of_one_rank_is_named_and_ended(launcher):
    with pytest.raises(RanksFailed, match="Rank 1 hung: it did not end within 5 s"):
        run_on_ranks(hangs_on_rank_1, Layout(2, 1, launcher), timeout_s=5)
    listing = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "hangs_on_rank_1" not in listing


def test_a_warning_is_an_error():
    with pytest.raises(RanksFailed, match="something"):
        run_on_ranks(warns, Layout(), timeout_s=60)


def prints_and_exits():
    print("the last words", flush=True)
    os._exit(1)


def test_the_report_shows_what_ranks_printed():
    with pytest.raises(RanksFailed, match="(?s)--- 0.log.*the last words"):
        run_on_ranks(prints_and_exits, Layout(), timeout_s=60)
