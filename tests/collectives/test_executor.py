import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.bucket_sum import BucketSum
from tfdist.collectives.bucket_sum import Message
from tfdist.collectives.engine_sum import EngineSum
from tfdist.collectives.executor import Executor
from tfdist.collectives.packed_sum import PackedSum
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
        self.purposes, self.overlaps, self.ended, self._duration_s = [], 0, 0, duration_s
        self._lock = threading.Lock()

    def meet(self, purpose, value=0):
        self.overlaps += not self._lock.acquire(blocking=False)
        self.purposes.append(purpose)
        time.sleep(self._duration_s)
        self.ended += 1
        if self._lock.locked():
            self._lock.release()
        return [value, value]


def make_executor(communicator, meetings, fusion_bytes=0, packed=False):
    total = PackedSum(communicator) if packed else EngineSum(communicator)
    return Executor(communicator, meetings, fusion_bytes, total, total)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_sums_in_buckets_and_keeps_dtypes(graph, packed):
    communicator = Doubling()
    executor = make_executor(communicator, Meetings(), 16, packed)
    tensors = [tf.ones(4), tf.ones(2), tf.ones(2, tf.float16), tf.ones(2, tf.bfloat16), tf.ones(1, tf.int32), tf.ones(1, tf.uint8)]
    values = [[tensor, tensor] for tensor in tensors]
    sums = (tf.function(executor.all_reduce) if graph else executor.all_reduce)(values)
    for before, after in zip(tensors, sums, strict=True):
        assert after.dtype == before.dtype
        assert after.shape == before.shape
        np.testing.assert_array_equal(tf.cast(after, tf.float32), 4.0)
    # Halves travel as float32, small integers as int64.
    dtypes = sorted(dtype for bucket in communicator.buckets for dtype, _ in bucket)
    assert set(dtypes) == {"float32", "int32", "int64"}
    if not packed:
        assert sorted(communicator.buckets) == sorted(
            [[("int64", 1)], [("int32", 1)], [("float32", 2), ("float32", 2)], [("float32", 2)], [("float32", 4)]]
        )


def test_packed_values_that_tensorflow_takes_for_constants_are_not_written_to():
    class InPlace(Doubling):
        def all_reduce(self, tensors, name):
            def double(array):
                array *= 2
                return array

            return [tf.numpy_function(double, [tensor], tensor.dtype) for tensor in tensors]

    executor = make_executor(InPlace(), Meetings(), 0, packed=True)
    step = tf.function(lambda: executor.all_reduce([[tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])]])[0])
    assert [step().numpy().tolist() for _ in range(3)] == [[8, 12]] * 3


def test_packed_values_of_unknown_shape():
    executor = make_executor(Doubling(), Meetings(), 2**20, packed=True)
    signature = [tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([3], tf.float32)]
    step = tf.function(lambda a, b: executor.all_reduce([[a], [b]]), input_signature=signature)
    for rows in (0, 1, 5):
        first, second = step(tf.ones([rows, 2]), tf.range(3.0))
        np.testing.assert_array_equal(first, np.full((rows, 2), 2))
        np.testing.assert_array_equal(second, [0, 2, 4])


def test_buckets_take_turns():
    """A new bucket's first message comes before the second one of the bucket before: one is on the wire, one is worked on."""
    sent = []

    class TwoMessages(BucketSum):
        def steps(self, values, kept=None):
            number = int(values[0][0][0])
            for part in ("first", "second"):
                yield Message(lambda name, part=part: sent.append((number, part)) or tf.constant(0))
            return [copies[0] for copies in values]

    executor = Executor(Doubling(), Meetings(), 0, TwoMessages(), TwoMessages())
    sums = executor.all_reduce([[tf.constant([number])] for number in (0, 1, 2)])
    assert [int(total[0]) for total in sums] == [0, 1, 2]
    assert sent == [(2, "first"), (1, "first"), (2, "second"), (0, "first"), (1, "second"), (0, "second")]


def test_only_large_gradients_of_known_shape_are_compressed():
    chosen = []

    class Noting(EngineSum):
        def __init__(self, name):
            super().__init__(Doubling())
            self.name = name

        def steps(self, values, kept=None):
            chosen.append((self.name, kept is None))
            return super().steps(values, kept)

    executor = Executor(Doubling(), Meetings(), 0, Noting("exact"), Noting("compressed"))
    large = [tf.ones(5000)]
    executor.all_reduce([large])
    executor.all_reduce([large], {})
    executor.all_reduce([[tf.ones(10)]], {})
    executor.all_reduce([[tf.ones(5000, tf.float64)]], {})
    assert chosen == [("exact", True), ("compressed", False), ("exact", True), ("exact", True)]
    chosen.clear()
    together = Executor(Doubling(), Meetings(), 2**20, Noting("exact"), Noting("compressed"))
    signature = [tf.TensorSpec([None]), tf.TensorSpec([5000])]
    tf.function(lambda *values: together.all_reduce([[value] for value in values], {}), signature).get_concrete_function()
    assert chosen == [("exact", True)]


def test_buckets_that_are_on_their_way_are_waited_for_last():
    events = []

    class Begun(BucketSum):
        def steps(self, values, kept=None):
            number = int(values[0][0][0])
            events.append(("packed", number))
            yield Message(lambda name: events.append(("waited for", number)) or tf.constant(0), begun=True)
            return [copies[0] for copies in values]

    executor = Executor(Doubling(), Meetings(), 0, Begun(), Begun())
    assert [int(total[0]) for total in executor.all_reduce([[tf.constant([number])] for number in (0, 1)])] == [0, 1]
    assert events == [("packed", 1), ("packed", 0), ("waited for", 1), ("waited for", 0)]


def test_small_models_have_several_buckets():
    communicator = Doubling()
    make_executor(communicator, Meetings(), 2**30).all_reduce([[tf.ones(2**18)] for _ in range(16)])
    assert [len(bucket) for bucket in communicator.buckets] == [1, *[2] * 7, 1]


def test_one_process_sends_nothing():
    executor = make_executor(LocalCommunicator(), Meetings())
    tensor = tf.ones(3)
    assert executor.all_reduce([[tensor]])[0] is tensor
    assert executor.all_reduce([[tensor, tensor]])[0].numpy().tolist() == [2, 2, 2]
    assert executor.all_gather(tensor) is tensor


def test_nothing_is_sent_in_a_graph_before_a_meeting():
    meetings = Meetings()
    executor = make_executor(Doubling(), meetings)
    assert tf.function(executor.all_reduce)([[tf.ones(2)]])[0].numpy().tolist() == [2, 2]
    assert meetings.purposes == ["reduce tensors outside of a step"]


def test_a_message_waits_for_the_end_of_the_meeting():
    meetings, met_before = Meetings(duration_s=0.2), []

    class Noting(Doubling):
        def all_reduce(self, tensors, name):
            return [self.all_gather(tensor, name) for tensor in tensors]

        def all_gather(self, tensor, name):
            # Like Horovod's operations, TensorFlow may run it before what comes first in the program.
            return tf.numpy_function(self.note, [tensor], tensor.dtype, stateful=False)

        def note(self, array):
            met_before.append(meetings.ended)
            return array

    executor = make_executor(Noting(), meetings)
    tf.function(lambda value: executor.all_reduce([[value]]))(tf.ones(2))
    tf.function(executor.all_gather)(tf.ones(2))
    assert met_before == [1, 2]


def test_meetings_keep_their_order_where_tensorflow_would_run_side_by_side():
    meetings = Meetings(duration_s=0.1)
    executor = make_executor(Doubling(), meetings)

    @tf.function
    def two_conditions(flag):
        first = tf.cond(flag, lambda: executor.meet(lambda: "first", 1), lambda: tf.constant(0, tf.int64))
        second = tf.cond(flag, lambda: executor.meet(lambda: "second", 2), lambda: tf.constant(0, tf.int64))
        return first, second

    for _ in range(5):
        assert [int(total) for total in two_conditions(tf.constant(True))] == [2, 4]
    assert meetings.purposes == ["first", "second"] * 5
    assert meetings.overlaps == 0
