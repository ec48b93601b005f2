import threading

import numpy as np
import pytest
import tensorflow as tf

from tests.collectives.test_executor import Doubling
from tests.collectives.test_executor import Meetings
from tfdist.collectives.background_sum import BackgroundSum
from tfdist.collectives.executor import Executor


class InOrder(Doubling):
    in_order = True


def make_executor(sum_array):
    total = BackgroundSum(sum_array)
    return Executor(InOrder(), Meetings(), 0, total, total)


def test_sums_in_one_thread_in_the_order_of_buckets():
    seen = []

    def double(array):
        seen.append((threading.current_thread().name, int(array[0])))
        array *= 2
        return array

    executor = make_executor(double)
    step = tf.function(lambda values: executor.all_reduce([[value, value] for value in values]))
    values = [tf.fill([5], float(number)) for number in range(6)]
    for _ in range(3):
        np.testing.assert_array_equal(tf.stack(step(values))[:, 0], 4.0 * np.arange(6))
    assert [first for _, first in seen] == [10, 8, 6, 4, 2, 0] * 3
    assert len({name for name, _ in seen}) == 1


def test_a_bucket_is_sent_while_later_ones_are_computed():
    """The last gradient is only computed once the first bucket has been sent: without overlap this would wait for ever."""
    first_sent = threading.Event()

    def double(array):
        first_sent.set()
        return array

    def late(unknown):
        del unknown
        assert first_sent.wait(60), "the first bucket waits for the last"
        return np.float32(1)

    executor = make_executor(double)

    @tf.function
    def step(unknown):
        slow = tf.fill([4], tf.ensure_shape(tf.numpy_function(late, [unknown], tf.float32, stateful=False), []))
        return executor.all_reduce([[slow], [tf.ones([4])]])

    assert [float(total[0]) for total in step(tf.constant(0))] == [1, 1]


def test_an_error_is_raised_where_it_is_waited_for():
    def fail(array):
        raise ValueError(f"no route for {array.size} elements")

    executor = make_executor(fail)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no route for 16 elements"):
        tf.function(lambda: executor.all_reduce([[tf.ones([4])]]))()
