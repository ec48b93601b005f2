"""An all-reduce by a plan of ours."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tfdist.collectives.plan import Plan
from tfdist.collectives.plan_runner import PlanRunner
from tfdist.collectives.plan_runner import RankRound


class PlannedSum:
    """Sums arrays over ranks, in place, each length by its plan.

    Args:
        runner: Runs plans.
        make_plan: The plan for a number of elements and the bytes of each; the same on all ranks.
    """

    def __init__(self, runner: PlanRunner, make_plan: Callable[[int, int], Plan]) -> None:
        self._runner = runner
        self._make_plan = make_plan
        self._rounds: dict[tuple[int, int], list[RankRound]] = {}

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """Sums an array of one dimension in place, and returns it."""
        key = array.size, array.itemsize
        if key not in self._rounds:
            self._rounds[key] = self._runner.compile(self._make_plan(*key), array.itemsize)
        self._runner.run(self._rounds[key], array)
        return array
