"""When which stage works on which minibatch: pure plans."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Sequence
from typing import NamedTuple

FORWARD, BACKWARD = "F", "B"


class Slot(NamedTuple):
    """What a stage does in one clock."""

    clock: int
    stage: int
    direction: str
    """`FORWARD` or `BACKWARD`."""
    minibatch: int


class Staleness(NamedTuple):
    """How many updates of other minibatches land on each stage between its pass and the end of the minibatch, by stage.

    A minibatch ends with the backward pass of stage 0: that is the moment whose weights every pass should use, the same for all.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]


def gpipe(stages: int, minibatches: int) -> list[Slot]:
    """All forward passes, then all backward passes, then one update.

    ```
    3 stages, 2 minibatches        clock  0   1   2   3   4   5   6   7
                                 stage 0  F0  F1  .   .   .   .   B0  B1
                                       1  .   F0  F1  .   .   B0  B1  .
                                       2  .   .   F0  F1  B0  B1  .   .
    ```

    Args:
        stages: Their number, 1 or more.
        minibatches: The micro-batches of one batch, 1 or more.

    Example:
        >>> print(draw(gpipe(2, 2)))
        stage 0  F0 F1  .  . B0 B1
        stage 1   . F0 F1 B0 B1  .

    Reference:
        Huang et al. 2018, arXiv 1811.06965, figure 2. There the backward passes come in the opposite order; the sum is the same.
    """
    _check(stages, minibatches)
    forward = [Slot(m + k, k, FORWARD, m) for m in range(minibatches) for k in range(stages)]
    start = minibatches + stages - 1
    backward = [Slot(start + m + stages - 1 - k, k, BACKWARD, m) for m in range(minibatches) for k in range(stages)]
    return sorted(forward + backward)


def one_forward_one_backward(stages: int, minibatches: int) -> list[Slot]:
    """Each stage in turns: a forward pass of a new minibatch, and the backward pass of an old one, with its update.

    ```
    forward of minibatch i on stage k     at clock 2 i + k
    backward                              at clock 2 i + 2 N - 1 - k        N: stages
    ```

    Args:
        stages: Their number, 1 or more.
        minibatches: How many run through between filling and draining, 1 or more.

    Example:
        >>> print(draw(one_forward_one_backward(3, 4)))
        stage 0  F0  . F1  . F2 B0 F3 B1  . B2  . B3
        stage 1   . F0  . F1 B0 F2 B1 F3 B2  . B3  .
        stage 2   .  . F0 B0 F1 B1 F2 B2 F3 B3  .  .

    Reference:
        Harlap et al. 2018 (PipeDream), arXiv 1806.03377, section 3.2; Chen, Yang and Cheng 2018 (SpecTrain), arXiv 1809.02839.
    """
    _check(stages, minibatches)
    slots = []
    for i in range(minibatches):
        slots += [Slot(2 * i + k, k, FORWARD, i) for k in range(stages)]
        slots += [Slot(2 * i + 2 * stages - 1 - k, k, BACKWARD, i) for k in range(stages)]
    return sorted(slots)


def count_staleness(plan: Callable[[int, int], Sequence[Slot]], stages: int) -> Staleness:
    """Counts, for a minibatch in the middle of many, the updates between each of its passes and its end.

    Args:
        plan: Makes the slots for a number of stages and minibatches; each backward pass ends with an update of its stage.
        stages: The number of stages.

    Example:
        >>> count_staleness(one_forward_one_backward, 4)
        Staleness(forward=(3, 2, 2, 1), backward=(0, 0, 1, 1))
    """
    minibatch = 3 * stages
    slots = plan(stages, 2 * minibatch)
    clock_of = {(slot.stage, slot.direction, slot.minibatch): slot.clock for slot in slots}
    end = clock_of[0, BACKWARD, minibatch]

    def updates(stage: int, direction: str) -> int:
        start = clock_of[stage, direction, minibatch]
        others = (s for s in slots if s.stage == stage and s.direction == BACKWARD and s.minibatch != minibatch)
        return sum(start <= slot.clock <= end for slot in others)

    return Staleness(
        tuple(updates(stage, FORWARD) for stage in range(stages)), tuple(updates(stage, BACKWARD) for stage in range(stages))
    )


def spectrain_staleness(stages: int) -> Staleness:
    """The same by formula, for stages that take equally long, forward and backward.

    ```
    s forward = floor(k / 2) + N - k - 1        s backward = floor(k / 2)        k: the stage    N: stages
    ```

    Example:
        >>> spectrain_staleness(2)
        Staleness(forward=(1, 0), backward=(0, 0))

    Reference:
        Chen, Yang and Cheng 2018, arXiv 1809.02839, section 4.
    """
    return Staleness(tuple(k // 2 + stages - k - 1 for k in range(stages)), tuple(k // 2 for k in range(stages)))


def draw(slots: Iterable[Slot]) -> str:
    """A table: a row for each stage, a column for each clock."""
    slots = list(slots)
    cells = {(slot.stage, slot.clock): f"{slot.direction}{slot.minibatch}" for slot in slots}
    width = max(map(len, cells.values()))
    stages, clocks = (1 + max(getattr(slot, name) for slot in slots) for name in ("stage", "clock"))
    rows = (" ".join(cells.get((stage, clock), ".").rjust(width) for clock in range(clocks)) for stage in range(stages))
    return "\n".join(f"stage {stage}  {row}" for stage, row in enumerate(rows))


def _check(stages: int, minibatches: int) -> None:
    if stages < 1 or minibatches < 1:
        raise ValueError(f"A pipeline has a stage and a minibatch or more. Received: stages={stages}, minibatches={minibatches}.")
