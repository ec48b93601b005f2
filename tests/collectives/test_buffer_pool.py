import numpy as np
import pytest
import tensorflow as tf

from tfdist.collectives.buffer_pool import aligned_offsets
from tfdist.collectives.buffer_pool import ALIGNMENT_BYTES
from tfdist.collectives.buffer_pool import BufferPool


def test_a_buffer_is_used_again_when_nobody_looks_at_it():
    pool = BufferPool()
    first = pool.take(100, np.dtype("float32"))
    view, address = first[10:20].reshape(2, 5), first.ctypes.data
    del first
    second = pool.take(100, np.dtype("float32"))
    assert second.ctypes.data != address
    del view
    assert pool.take(100, np.dtype("float32")).ctypes.data == address


def test_tensorflow_looks_without_a_copy():
    pool, addresses = BufferPool(), []

    def fill(value):
        array = pool.take(1000, np.dtype("float32"))
        array[:] = value
        addresses.append(array.ctypes.data)
        return array

    def look(array):
        addresses.append(array.ctypes.data)
        return array.sum()

    step = tf.function(lambda value: tf.numpy_function(look, [tf.numpy_function(fill, [value], tf.float32)], tf.float32))
    assert [float(step(tf.constant(float(value)))) for value in range(4)] == [0, 1000, 2000, 3000]
    assert addresses[::2] == addresses[1::2]
    assert len(set(addresses)) <= 2


def test_results_that_are_kept_are_not_written_over():
    pool = BufferPool()

    def fill(value):
        array = pool.take(64, np.dtype("float32"))
        array[:] = value
        return array

    step = tf.function(lambda value: tf.numpy_function(fill, [value], tf.float32))
    kept = [step(tf.constant(float(value))) for value in range(5)]
    assert [float(result[0]) for result in kept] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("lengths", "itemsize", "offsets"), [([], 4, [0]), ([1], 4, [0, 16]), ([16, 17, 0], 4, [0, 16, 48, 48]), ([9], 8, [0, 16])]
)
def test_offsets(lengths, itemsize, offsets):
    assert aligned_offsets(lengths, itemsize) == offsets
    assert all(offset * itemsize % ALIGNMENT_BYTES == 0 for offset in offsets)
