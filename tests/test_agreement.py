"""Ranks as threads, over a communicator of this process."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tfdist import agreement
from tfdist.agreement import Agreement
from tfdist.agreement import RankMismatchError
from tfdist.communicators.base import Communicator
from tfdist.communicators.local import LocalCommunicator


class ThreadCommunicator(Communicator):
    """One rank of several in this process; only what an agreement needs."""

    name = "threads"

    def __init__(self, rank, size, shared):
        self.rank, self.size, self._shared = rank, size, shared

    def gather_array(self, array):
        self._shared["rows"][self.rank] = array
        self._shared["barrier"].wait()
        joined = np.concatenate(self._shared["rows"])
        self._shared["barrier"].wait()
        return joined

    def broadcast_array(self, array, root=0):
        raise AssertionError

    all_reduce = all_gather = broadcast_array

    def abort(self):
        self._shared["aborted"] = True


@pytest.fixture
def make_ranks(monkeypatch):
    monkeypatch.setattr(Agreement, "_watch_exit", lambda self: None)

    def make(size):
        shared = {"rows": [None] * size, "barrier": threading.Barrier(size)}
        return [Agreement(ThreadCommunicator(rank, size, shared)) for rank in range(size)]

    return make


def on_all(agreements, function):
    """Runs a function of (agreement, rank) on all ranks; returns results or exceptions."""
    with ThreadPoolExecutor(len(agreements)) as pool:
        futures = [pool.submit(function, each, rank) for rank, each in enumerate(agreements)]
    return [future.exception() or future.result() for future in futures]


def test_values_are_exchanged(make_ranks):
    assert on_all(make_ranks(3), lambda each, rank: each.meet("add", 10 * rank)) == [[0, 10, 20]] * 3


def test_one_process_meets_itself():
    assert Agreement(LocalCommunicator()).meet("anything", 7) == [7]


def test_different_purposes_are_an_error_on_every_rank(make_ranks):
    errors = on_all(make_ranks(3), lambda each, rank: each.meet("evaluate" if rank == 1 else "fit"))
    for error in errors:
        assert isinstance(error, RankMismatchError)
        assert "rank 0 was about to: fit; rank 1 was about to: evaluate; rank 2" in str(error)


def test_a_rank_that_left_is_named_with_its_reason(make_ranks, caplog):
    errors = on_all(make_ranks(2), lambda each, rank: each.leave("ValueError: boom") if rank else each.meet("fit"))
    assert "rank 1 left (ValueError: boom); rank 0 was about to: fit" in str(errors[0])
    assert "rank 1 left" in caplog.text  # the one that left says so too


def test_all_leave_together(make_ranks, caplog):
    assert on_all(make_ranks(2), lambda each, rank: each.leave(f"rank {rank} is done")) == [None, None]
    assert not caplog.text


def test_equal_settings(make_ranks):
    assert on_all(make_ranks(2), lambda each, rank: each.compare("fit", {"epochs": 2})) == [None, None]


def test_different_settings_are_named(make_ranks):
    errors = on_all(make_ranks(3), lambda each, rank: each.compare("fit", {"fit": {"epochs": 2 + (rank == 2), "shuffle": True}}))
    for error in errors:
        assert isinstance(error, RankMismatchError)
        assert "Received: fit.epochs: 2 on ranks 0 and 1, 3 on rank 2." in str(error)
        assert "shuffle" not in str(error)


def test_a_lost_connection_is_explained(make_ranks, monkeypatch):
    first, _ = make_ranks(2)
    monkeypatch.setattr(first._communicator, "gather_array", lambda array: 1 / 0)
    with pytest.raises(RankMismatchError, match="Rank 0 lost the connection.*before: fit.*ZeroDivisionError"):
        first.meet("fit")
    first.leave()  # does nothing more


def test_a_slow_rank_is_reported_once(make_ranks, monkeypatch, caplog):
    monkeypatch.setattr(agreement, "_WARN_AFTER_S", 0.2)
    with caplog.at_level(logging.WARNING):
        on_all(make_ranks(2), lambda each, rank: (time.sleep(rank), each.meet("fit")))
    assert caplog.text.count("other ranks, about to: fit") == 1


def test_after_an_error_all_are_ended_if_the_others_cannot_come(make_ranks, monkeypatch, caplog):
    monkeypatch.setattr(agreement, "_LEAVE_AFTER_ERROR_S", 0.1)
    first, _ = make_ranks(2)
    first._failure = "ValueError: boom"
    first._leave_at_exit()
    assert first._communicator._shared["aborted"]
    assert "Rank 0 fails (ValueError: boom)" in caplog.text
    first._communicator._shared["barrier"].abort()
