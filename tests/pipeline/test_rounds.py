import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.pipeline.rounds import active_passes
from tfdist.pipeline.rounds import draining_rounds
from tfdist.pipeline.rounds import Pass
from tfdist.pipeline.rounds import round_passes
from tfdist.pipeline.schedule import one_forward_one_backward


def test_literal_lists():
    assert round_passes(1) == [Pass(0, "F", 0), Pass(0, "B", 0)]
    assert round_passes(3) == [
        Pass(0, "F", 0),
        Pass(1, "B", 2),
        Pass(2, "F", 1),
        Pass(0, "B", 2),
        Pass(1, "F", 0),
        Pass(2, "B", 1),
    ]
    assert [draining_rounds(stages) for stages in (1, 2, 3, 4, 8)] == [0, 1, 2, 3, 7]


@pytest.mark.parametrize("stages", range(1, 9))
@given(minibatches=st.integers(1, 20))
def test_rounds_are_the_schedule_two_clocks_at_a_time(stages, minibatches):
    """Whether it is known from the beginning when it ends, or not."""
    rounds = minibatches + draining_rounds(stages)
    found = []
    for number in range(rounds):
        last = minibatches - 1 if number >= minibatches else None
        found += [(number, each.stage, each.direction, number - each.age) for each in active_passes(stages, number, last)]
    expected = [(slot.clock // 2, *slot[1:]) for slot in one_forward_one_backward(stages, minibatches)]
    assert sorted(found) == sorted(expected)
    clock_of = {slot[1:]: slot.clock for slot in one_forward_one_backward(stages, minibatches)}
    assert all(clock_of[one[1:]] <= clock_of[other[1:]] for one, other in itertools.pairwise(found))
