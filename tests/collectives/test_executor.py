import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.executor import Executor
from tfdist.communicators.local import LocalCommunicator


class Doubling(LocalCommunicator):
    """Stands for two ranks with equal tensors."""

    size = 2

    def __init__(self):
        self.buckets = []

    def all_reduce(self, tensors, name):
        self.buckets.append([(tensor.dtype.name, tensor.shape.num_elements()) for tensor in tensors])
        return [2 * tensor for tensor in tensors]


class Meetings:
    """An agreement that notes who is there at the same time."""

    def __init__(self, duration_s=0.0):
        self.purposes, self.overlaps, self._duration_s = [], 0, duration_s
        self._lock = threading.Lock()

    def meet(self, purpose, value=0):
        self.overlaps += not self._lock.acquire(blocking=False)
        self.purposes.append(purpose)
        time.sleep(self._duration_s)
        if self._lock.locked():
            self._lock.release()
        return [value, value]


@pytest.mark.parametrize("graph", [False, True])
def test_sums_in_buckets_and_keeps_dtypes(graph):
    communicator = Doubling()
    executor = Executor(communicator, Meetings(), fusion_bytes=16)
    tensors = [tf.ones(4), tf.ones(2), tf.ones(2, tf.float16), tf.ones(2, tf.bfloat16), tf.ones(1, tf.int32), tf.ones(1, tf.uint8)]
    sums = (tf.function(executor.all_reduce) if graph else executor.all_reduce)(tensors)
    for before, after in zip(tensors, sums):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(tf.cast(after, tf.float32), 2.0)
    # Halves travel as float32, small integers as int64.
    assert sorted(communicator.buckets) == sorted(
        [[("int64", 1)], [("int32", 1)], [("float32", 2), ("float32", 2)], [("float32", 2)], [("float32", 4)]]
    ), communicator.buckets


def test_one_process_sends_nothing():
    executor = Executor(LocalCommunicator(), Meetings(), 0)
    tensor = tf.ones(3)
    assert executor.all_reduce([tensor])[0] is tensor
    assert executor.all_gather(tensor) is tensor


def test_nothing_is_sent_in_a_graph_before_a_meeting():
    meetings = Meetings()
    executor = Executor(Doubling(), meetings, 0)
    assert tf.function(executor.all_reduce)([tf.ones(2)])[0].numpy().tolist() == [2, 2]
    assert meetings.purposes == ["reduce tensors outside of a step"]


def test_meetings_keep_their_order_where_tensorflow_would_run_side_by_side():
    meetings = Meetings(duration_s=0.1)
    executor = Executor(Doubling(), meetings, 0)

    @tf.function
    def two_conditions(flag):
        first = tf.cond(flag, lambda: executor.meet(lambda: "first", 1), lambda: tf.constant(0, tf.int64))
        second = tf.cond(flag, lambda: executor.meet(lambda: "second", 2), lambda: tf.constant(0, tf.int64))
        return first, second

    for _ in range(5):
        assert [int(total) for total in two_conditions(tf.constant(True))] == [2, 4]
    assert meetings.purposes == ["first", "second"] * 5
    assert meetings.overlaps == 0
