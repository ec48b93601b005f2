"""Schedules of one forward and one backward pass, a round at a time."""

from __future__ import annotations

from typing import NamedTuple

from tfdist.pipeline.schedule import BACKWARD
from tfdist.pipeline.schedule import FORWARD


class Pass(NamedTuple):
    """What a stage does in a round."""

    stage: int
    direction: str
    age: int
    """How many rounds ago its minibatch was handed to the pipeline."""


def round_passes(stages: int) -> list[Pass]:
    """The passes of a round, which is two clocks of `one_forward_one_backward`, in an order in which each finds what it needs.

    ```
    clock 2 r        even stages forward, odd ones backward
    clock 2 r + 1    odd stages forward, even ones backward
    ```

    Example:
        >>> [f"{p.direction}{p.stage} -{p.age}" for p in round_passes(2)]
        ['F0 -0', 'B1 -1', 'B0 -1', 'F1 -0']
    """
    found = []
    for half in (0, 1):
        for stage in range(stages):
            if stage % 2 == half:
                found.append(Pass(stage, FORWARD, stage // 2))
            else:
                found.append(Pass(stage, BACKWARD, (2 * stages - 1 - stage) // 2))
    return found


def active_passes(stages: int, number: int, last: int | None) -> list[Pass]:
    """Those of a round in which there is a minibatch.

    Args:
        stages: Their number.
        number: The round, from 0 where the pipeline was empty.
        last: The last minibatch before it drains; None if that has not come yet.
    """
    return [each for each in round_passes(stages) if number >= each.age and (last is None or number - each.age <= last)]


def draining_rounds(stages: int) -> int:
    """How many rounds there are after that of the last minibatch."""
    return max(each.age for each in round_passes(stages))
