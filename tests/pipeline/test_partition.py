import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.pipeline.partition import bottleneck
from tfdist.pipeline.partition import partition


@pytest.mark.parametrize(
    ("costs", "stages", "expected"),
    [
        ([1, 1, 1, 1], 2, [0, 2]),
        ([1, 1, 1, 1], 4, [0, 1, 2, 3]),
        ([5, 1, 1, 1], 2, [0, 1]),
        ([0, 0, 9, 0], 3, [0, 2, 3]),
        ([3], 1, [0]),
        ([1, 1, 10, 1, 1, 1, 1], 3, [0, 2, 3]),
    ],
)
def test_literal_tables(costs, stages, expected):
    found = partition(costs, stages)
    assert bottleneck(costs, found) == bottleneck(costs, expected)
    if 0 not in costs:
        assert found == expected


@given(costs=st.lists(st.integers(0, 20), min_size=1, max_size=8), data=st.data())
def test_no_other_cut_is_better(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    found = partition(costs, stages)
    assert len(found) == stages
    assert found[0] == 0
    assert all(one < other for one, other in itertools.pairwise([*found, len(costs)]))
    every = ([0, *cuts] for cuts in itertools.combinations(range(1, len(costs)), stages - 1))
    assert bottleneck(costs, found) == min(bottleneck(costs, cuts) for cuts in every)


def test_wrong_numbers():
    with pytest.raises(ValueError, match="Received: stages=3, layers=2"):
        partition([1, 1], 3)
    with pytest.raises(ValueError, match=r"Received: costs\[1\]=-1"):
        partition([1, -1], 1)
