import pytest
import tensorflow as tf

from tfdist.data import ramp_of
from tfdist.data import rampable
from tfdist.data import static_batch_size
from tfdist.data import steps_of
from tfdist.data import unseeded_shuffle


def sizes(dataset):
    return [int(batch.shape[0]) for batch in dataset]


def test_the_batch_size_of_a_rampable_dataset_changes_between_epochs():
    rows = tf.data.Dataset.range(22).shuffle(22, seed=1)
    batches = rampable(rows, 4).map(lambda x: x + 1).prefetch(2)
    assert static_batch_size(batches) == 4
    assert steps_of(batches) == len(sizes(batches)) == 6
    ramp_of(batches).size.assign(8)
    assert sizes(batches) == [8, 8, 6]
    assert steps_of(batches) == 3
    assert static_batch_size(batches) == 8
    assert sorted(int(x) for batch in batches for x in batch) == list(range(1, 23))


def test_a_rampable_dataset_that_is_made_in_a_scope_has_one_batch_size():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        assert sizes(rampable(tf.data.Dataset.range(3), 2)) == [2, 1]


def test_steps_that_cannot_be_counted():
    batches = rampable(tf.data.Dataset.range(8), 2)
    assert steps_of(batches.repeat()) is None
    assert steps_of(batches.filter(lambda x: True)) is None
    assert steps_of(rampable(tf.data.Dataset.range(8).filter(lambda x: True), 2)) is None
    assert steps_of(tf.data.Dataset.range(8).batch(2)) is None
    assert ramp_of(tf.data.Dataset.range(8).batch(2)) is None


@pytest.mark.parametrize("batch_size", [0, 2.0, True])
def test_wrong_batch_sizes(batch_size):
    with pytest.raises(ValueError, match=f"1 or more. Received: batch_size={batch_size}"):
        rampable(tf.data.Dataset.range(8), batch_size)


def test_static_batch_size_and_unseeded_shuffle():
    dataset = tf.data.Dataset.range(10)
    assert static_batch_size(dataset.batch(4).prefetch(1)) == 4
    assert static_batch_size(dataset.batch(4, drop_remainder=True).map(lambda x: x)) == 4
    assert static_batch_size(dataset) is None
    tf.random.set_seed(None)
    assert unseeded_shuffle(dataset.shuffle(4).batch(2))
    assert not unseeded_shuffle(dataset.shuffle(4, seed=1).batch(2))
    tf.random.set_seed(1)
    assert not unseeded_shuffle(dataset.shuffle(4).batch(2))
    tf.random.set_seed(None)
