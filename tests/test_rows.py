import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfdist.rows import count_rows
from tfdist.rows import rank_dataset
from tfdist.rows import replica_rows


@given(st.integers(0, 200), st.integers(1, 64))
def test_every_row_has_one_replica_and_parts_differ_by_one(rows, num_replicas):
    parts = [replica_rows(rows, replica, num_replicas) for replica in range(num_replicas)]
    assert [row for start, end in parts for row in range(start, end)] == list(range(rows))
    lengths = [end - start for start, end in parts]
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    ("rank", "size", "num_local", "expected"),
    [
        (0, 1, 1, [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10]]),
        (1, 2, 1, [[4, 5, 6, 7], [9, 10]]),
        (0, 1, 2, [([0, 1, 2, 3], [4, 5, 6, 7]), ([8], [9, 10])]),
        (1, 2, 2, [([2, 3], [6, 7]), ([8], [10])]),  # the second and the fourth of four parts
        (0, 5, 1, [[0], []]),
    ],
)
def test_parts_of_a_rank(rank, size, num_local, expected):
    dataset = rank_dataset(tf.data.Dataset.range(11).batch(8), rank, size, num_local)
    found = [tuple(p.numpy().tolist() for p in e) if num_local > 1 else e.numpy().tolist() for e in dataset]
    assert found == expected


def test_nested_ragged_and_sparse_batches():
    ragged = tf.ragged.constant([[1], [2, 3], [], [4]])
    sparse = tf.sparse.from_dense(np.eye(4, dtype="float32"))
    batch = ({"dense": tf.reshape(tf.range(8), (4, 2)), "ragged": ragged}, sparse, tf.constant(7))
    dataset = rank_dataset(tf.data.Dataset.from_tensors(batch), rank=1, size=2, num_local=1)
    (features, label, scalar) = next(iter(dataset))
    assert features["dense"].numpy().tolist() == [[4, 5], [6, 7]]
    assert features["ragged"].to_list() == [[], [4]]
    assert tf.sparse.to_dense(label).numpy().tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]]
    assert scalar.numpy() == 7


def test_count_rows():
    assert int(count_rows({"a": tf.constant(1), "b": tf.zeros((3, 2))})) == 3
    assert int(count_rows(tf.sparse.from_dense(np.eye(5)))) == 5
    assert count_rows([tf.constant(1)]) is None
