import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfdist.optimizers.selection import join
from tfdist.optimizers.selection import select
from tfdist.optimizers.selection import split


def chosen(values, density, offset=0, sparsity=None):
    values = np.asarray(values, np.float32)
    return select(tf.constant(values), tf.constant(density), sparsity or 1 - density, tf.constant(offset)).numpy()


@pytest.mark.parametrize("density", [0.001, 0.01, 0.25])
@pytest.mark.parametrize("offset", [0, 7, 12345])
def test_about_as_many_as_were_asked_for_and_the_largest(density, offset):
    values = np.random.default_rng(0).normal(size=200_000)
    indices = chosen(values, density, offset, sparsity=0.999)
    assert 0.5 * density * values.size <= indices.size <= 1.3 * density * values.size + 1
    assert len(set(indices)) == indices.size
    left = np.delete(np.abs(values), indices)
    assert np.abs(values[indices]).min() >= left.max() - 1e-6


def test_a_sample_that_misleads_does_not_send_more_than_was_asked_for():
    values = np.ones(100_000)
    values[::1001] = 0.5
    assert chosen(values, 0.001).size in (100, 101)  # all are equal: the threshold lets everything through


def test_samples_of_all_places_have_their_turn():
    """A window at the array's beginning, where values are larger, would always ask for too few."""
    values = np.random.default_rng(0).normal(size=100_000)
    values[:40_000] *= 10
    sizes = [chosen(values, 0.001, offset).size for offset in range(8)]
    assert min(sizes) < 70
    assert max(sizes) >= 100


def test_zeros_are_not_sent():
    assert chosen(np.zeros(1000), 0.5).size == 0
    values = np.zeros(1000)
    values[3] = -1e-30
    assert chosen(values, 0.5).tolist() == [3]


def test_what_is_not_a_number_is_sent():
    values = np.random.default_rng(0).normal(size=1000)
    values[[5, 77]] = np.nan, np.inf
    assert {5, 77} <= set(chosen(values, 0.1))
    assert np.isnan(chosen([np.nan] * 50, 0.1)).sum() == 0  # indices, not values
    assert chosen([np.nan] * 50, 0.1).size == 5


@given(st.lists(st.lists(st.integers(0, 9), unique=True, max_size=10), min_size=1, max_size=4), st.booleans())
@settings(deadline=None, max_examples=30)
def test_messages_come_back(indices, half):
    """Also several that follow one another, as from several ranks, and with arrays from which nothing is sent."""
    lengths = [10] * len(indices)
    dtype = tf.float16 if half else tf.float32
    pairs = [(tf.constant(sorted(each), tf.int32), tf.cast(tf.constant(each, tf.float32) / 8, dtype)) for each in indices]
    message = join(pairs, lengths)
    assert message.shape[1] == dtype.size + 4
    received = split(tf.concat([message, message], 0), dtype, lengths)
    for (sent_indices, sent_values), (got_indices, got_values) in zip(pairs, received, strict=True):
        np.testing.assert_array_equal(got_indices, np.tile(sent_indices, 2))
        np.testing.assert_array_equal(got_values, np.tile(tf.cast(sent_values, tf.float32), 2))


def test_more_elements_than_indices_can_count():
    with pytest.raises(ValueError, match=r"at most 2\^31 elements .* Received: 4000000000 elements"):
        join([(tf.zeros(0, tf.int32), tf.zeros(0))] * 2, [2 * 10**9] * 2)
