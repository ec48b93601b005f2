"""What every engine must do, on all of them."""

import os
import socket

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tfdist.communicators import create_communicator

LAYOUTS = (Layout(1, 1), Layout(2, 1, "mpi"), Layout(3, 1, "mpi"), Layout(2, 1, "horovod"))


@on_ranks(*LAYOUTS)
def test_host_and_tensor_methods():
    comm = create_communicator()
    ranks = np.arange(comm.size)

    ragged = comm.gather_array(np.full((comm.rank + 1, 2), comm.rank, "float32"))
    np.testing.assert_array_equal(ragged[:, 0], np.repeat(ranks, ranks + 1))
    assert comm.gather_array(np.empty((0,), np.uint8)).shape == (0,)

    for dtype in ("float32", "int64", "bool", "uint8"):
        value = np.array([[comm.rank + 1, 0]]).astype(dtype)
        np.testing.assert_array_equal(comm.broadcast_array(value), np.array([[1, 0]]).astype(dtype))

    @tf.function
    def summed(tensors):
        return comm.all_reduce(tensors, "sum")

    for dtype in sorted(comm.sum_dtypes):
        tensors = [tf.cast(tf.fill((3, 2), comm.rank + 1), dtype), tf.cast(tf.range(comm.rank, comm.rank + 5), dtype)]
        for _ in range(2):
            first, second = summed(tensors)
            np.testing.assert_array_equal(first, np.full((3, 2), (ranks + 1).sum()))
            np.testing.assert_array_equal(second, np.arange(5) * comm.size + ranks.sum())
        eager = comm.all_reduce(tensors, "eager")
        np.testing.assert_array_equal(eager[1], second)

    nan = comm.all_reduce([tf.constant([np.nan, np.inf, 1.0]) if comm.rank == 0 else tf.ones(3)], "nan")[0].numpy()
    assert np.isnan(nan[0])
    assert np.isinf(nan[1])
    assert nan[2] == comm.size

    @tf.function
    def gathered(tensor):
        return comm.all_gather(tensor, "gather")

    rows = gathered(tf.fill((comm.rank, 3), comm.rank))
    np.testing.assert_array_equal(rows[:, 0], np.repeat(ranks, ranks))


def test_a_host_whose_name_has_no_address_is_refused_before_gloo_crashes(monkeypatch):
    horovod = pytest.importorskip("tfdist.communicators.horovod")

    def fail(*_):
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(RuntimeError, match=r"(?s)which has none.*/etc/hosts.*Received: host '"):
        horovod._require_own_address()


@pytest.mark.parametrize(
    ("mine", "cores", "lost"), [({0}, 64, True), ({0, 1}, 64, False), ({0}, 1, False), (set(range(64)), 64, False)]
)
def test_a_process_that_is_tied_to_one_core_is_noticed(monkeypatch, mine, cores, lost):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: mine)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert pytest.importorskip("tfdist.communicators.mpi").cores_lost() == lost
