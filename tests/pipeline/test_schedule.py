import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.pipeline.schedule import BACKWARD
from tfdist.pipeline.schedule import count_staleness
from tfdist.pipeline.schedule import draw
from tfdist.pipeline.schedule import FORWARD
from tfdist.pipeline.schedule import gpipe
from tfdist.pipeline.schedule import one_forward_one_backward
from tfdist.pipeline.schedule import Slot
from tfdist.pipeline.schedule import spectrain_staleness

PLANS = [gpipe, one_forward_one_backward]


def test_literal_lists():
    assert gpipe(2, 1) == [Slot(0, 0, "F", 0), Slot(1, 1, "F", 0), Slot(2, 1, "B", 0), Slot(3, 0, "B", 0)]
    assert one_forward_one_backward(2, 2) == [
        Slot(0, 0, "F", 0),
        Slot(1, 1, "F", 0),
        Slot(2, 0, "F", 1),
        Slot(2, 1, "B", 0),
        Slot(3, 0, "B", 0),
        Slot(3, 1, "F", 1),
        Slot(4, 1, "B", 1),
        Slot(5, 0, "B", 1),
    ]
    assert one_forward_one_backward(1, 2) == [Slot(0, 0, "F", 0), Slot(1, 0, "B", 0), Slot(2, 0, "F", 1), Slot(3, 0, "B", 1)]


@pytest.mark.parametrize("plan", PLANS)
@given(stages=st.integers(1, 9), minibatches=st.integers(1, 12))
def test_every_pass_once_in_an_order_that_data_allow(plan, stages, minibatches):
    slots = plan(stages, minibatches)
    assert len(slots) == len(set(slots)) == 2 * stages * minibatches
    assert len({(slot.clock, slot.stage) for slot in slots}) == len(slots)  # one thing at a time
    at = {(slot.minibatch, slot.direction, slot.stage): slot.clock for slot in slots}
    for minibatch in range(minibatches):
        passes = [(FORWARD, k) for k in range(stages)] + [(BACKWARD, k) for k in reversed(range(stages))]
        clocks = [at[minibatch, direction, stage] for direction, stage in passes]
        assert all(earlier < later for earlier, later in itertools.pairwise(clocks))


def test_no_stage_rests_between_filling_and_draining():
    stages, minibatches = 4, 20
    slots = one_forward_one_backward(stages, minibatches)
    for clock in range(2 * stages, 2 * minibatches - 1):
        assert {slot.stage for slot in slots if slot.clock == clock} == set(range(stages))


@pytest.mark.parametrize("stages", range(1, 9))
def test_staleness_as_counted_is_that_of_the_formula(stages):
    assert count_staleness(one_forward_one_backward, stages) == spectrain_staleness(stages)


def test_staleness_of_four_stages():
    assert spectrain_staleness(4) == ((3, 2, 2, 1), (0, 0, 1, 1))


def test_a_schedule_with_longer_backward_passes_is_counted():
    """Twice as long as forward: the formula does not hold."""

    def plan(stages, minibatches):
        slots = []
        for i in range(minibatches):
            slots += [Slot(3 * i + k, k, FORWARD, i) for k in range(stages)]
            slots += [Slot(3 * i + stages + 1 + 2 * (stages - 1 - k), k, BACKWARD, i) for k in range(stages)]
        return slots

    assert count_staleness(plan, 3) == ((2, 1, 1), (0, 0, 1))


def test_drawing_and_wrong_numbers():
    assert draw(gpipe(1, 10)).splitlines() == ["stage 0  " + " ".join(f"{d}{m}" for d in "FB" for m in range(10))]
    with pytest.raises(ValueError, match="Received: stages=0, minibatches=1"):
        gpipe(0, 1)
    with pytest.raises(ValueError, match="Received: stages=1, minibatches=0"):
        one_forward_one_backward(1, 0)
