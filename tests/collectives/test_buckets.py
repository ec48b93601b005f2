import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.collectives.buckets import plan_buckets

F, D = "float32", "float64"


@pytest.mark.parametrize(
    ("sizes_bytes", "dtypes", "fusion_bytes", "buckets"),
    [
        ([], [], 8, []),
        ([4], [F], 8, [[0]]),
        ([4, 4, 4], [F] * 3, 8, [[2, 1], [0]]),
        ([4, 4, 4], [F] * 3, 0, [[2], [1], [0]]),
        ([40, 8, 8, 8], [F] * 4, 16, [[3, 2], [1], [0]]),
        ([4, 100, 4], [F] * 3, 8, [[2], [1], [0]]),
        ([4, 8, 4, 8], [F, D, F, D], 16, [[3, 1], [2, 0]]),
        ([0, 0, 4], [F] * 3, 4, [[2, 1, 0]]),
    ],
)
def test_plans(sizes_bytes, dtypes, fusion_bytes, buckets):
    assert plan_buckets(sizes_bytes, dtypes, fusion_bytes) == buckets


@pytest.mark.parametrize(
    ("sizes_bytes", "first_bytes", "buckets"),
    [
        ([8, 4, 4, 4, 4], 4, [[4], [3, 2, 1], [0]]),
        ([8, 4, 4, 4, 4], 5, [[4, 3], [2, 1], [0]]),
        ([8, 4, 4, 4, 4], 100, [[4, 3, 2], [1, 0]]),
        ([4, 100], 1, [[1], [0]]),
    ],
)
def test_the_first_bucket_is_short(sizes_bytes, first_bytes, buckets):
    assert plan_buckets(sizes_bytes, [F] * len(sizes_bytes), 12, first_bytes) == buckets


@given(st.lists(st.tuples(st.integers(0, 100), st.sampled_from([F, D]))), st.integers(0, 200))
def test_each_tensor_is_in_one_bucket_of_one_dtype_within_the_threshold(tensors, fusion_bytes):
    sizes_bytes, dtypes = [size for size, _ in tensors], [dtype for _, dtype in tensors]
    buckets = plan_buckets(sizes_bytes, dtypes, fusion_bytes)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(tensors)))
    for bucket in buckets:
        assert len({dtypes[index] for index in bucket}) == 1
        assert len(bucket) == 1 or sum(sizes_bytes[index] for index in bucket) <= fusion_bytes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(([1], [F, F], 8), "1 sizes_bytes and 2 dtypes"), (([1], [F], -1), "Received: fusion_bytes=-1")],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        plan_buckets(*arguments)
