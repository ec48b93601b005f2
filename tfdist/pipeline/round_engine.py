"""Runs a forward and a backward pass in turns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import _keras
from tfdist.pipeline.prediction import predict_weights
from tfdist.pipeline.prediction import smoothed_update
from tfdist.pipeline.rounds import active_passes
from tfdist.pipeline.rounds import draining_rounds
from tfdist.pipeline.rounds import Pass
from tfdist.pipeline.schedule import count_staleness
from tfdist.pipeline.schedule import FORWARD
from tfdist.pipeline.schedule import one_forward_one_backward
from tfdist.pipeline.stages import Batch
from tfdist.pipeline.stages import Stages

State = dict[str, list[list[Any]]]
Passes = tuple[tuple[Pass, ...], ...]
"""Those of each of several rounds."""


class RoundEngine:
    """Several minibatches at a time, each stage updating its weights after each backward pass.

    ```
    waiting[k]    what stage k will take next
    kept[k]       what its backward passes will need, oldest first
    back[k]       gradients of what it has made, oldest first
    ```

    Args:
        stages: The stages.
        optimizer: What updates them.
        schedule: "spectrain", "stale" or "stash".
    """

    def __init__(self, stages: Stages, optimizer: Any, schedule: str) -> None:
        self._stages, self._optimizer = stages, optimizer
        self._is_stash = schedule == "stash"
        self._staleness = count_staleness(one_forward_one_backward, len(stages))
        self._update: Callable[[Any], Any] | None = smoothed_update(optimizer) if schedule == "spectrain" else None
        self._compiled: dict[Passes, Any] = {}
        self.begin()

    def begin(self) -> None:
        """Empties the stages; what a `fit` that was interrupted has left in them is dropped."""
        self._number = 0
        self._state: State = {name: [[] for _ in range(len(self._stages))] for name in ("waiting", "kept", "back")}

    def train(self, batches: Sequence[Batch], *, is_last: bool) -> None:
        """Rounds with new minibatches; after the last ones, those that let all end."""
        self._advance(list(batches), None)
        if is_last:
            self._drain()

    def _drain(self) -> None:
        """Rounds without a new minibatch, until all have ended."""
        rounds = draining_rounds(len(self._stages))
        if rounds and self.minibatches_under_way:
            self._advance([None] * rounds, self._number - 1)
        self.begin()

    @property
    def minibatches_under_way(self) -> int:
        """How many have not ended."""
        return min(self._number, draining_rounds(len(self._stages)))

    def weight_bytes(self) -> int:
        """The size of the weights that are kept for backward passes."""
        kept = {id(w): w for entries in self._state["kept"] for entry in entries for w in entry["weights"]}
        return sum(int(weight.dtype.size * tf.size(weight)) for weight in kept.values())

    def _advance(self, batches: list[Batch | None], last: int | None) -> None:
        if self._number == 0:
            self._base = _keras.step_number(self._optimizer)
        rounds = range(self._number, self._number + len(batches))
        passes = tuple(tuple(active_passes(len(self._stages), number, last)) for number in rounds)
        first = self._base + tf.constant(self._number, tf.int64)
        self._state = self._step(passes)(self._state, batches, first)
        self._number += len(batches)

    # In a graph ------------------------------------------------------------------------------------------------------------

    def _step(self, passes: Passes) -> Callable[[State, list[Any], Any], State]:
        """A compiled function of rounds; there is one for those that fill the stages, one for all later ones, and so on."""
        if passes not in self._compiled:
            # TensorFlow warns of functions of one code that it traces often; it takes each partial function for another.
            step = functools.partial(self._run, passes)
            self._compiled[passes] = tf.function(step, reduce_retracing=True, autograph=False)
        found: Callable[[State, list[Any], Any], State] = self._compiled[passes]
        return found

    def _run(self, passes: Passes, state: State, batches: list[Any], first: Any) -> Any:
        return self._stages.run(lambda: self._rounds(passes, state, batches, first))

    def _rounds(self, passes: Passes, state: State, batches: list[Any], first: Any) -> State:
        """Several rounds: a stage begins the next one while others are still in this one."""
        state = {name: [list(queue) for queue in queues] for name, queues in state.items()}
        shares = self._stages.shares(batches)
        for number, (batch, active) in enumerate(zip(batches, passes, strict=True)):
            if batch is not None:
                state["waiting"][0].append(self._stages.enter(batch, shares[number]))
            for each in active:
                if each.direction == FORWARD:
                    self._forward(each.stage, state)
                else:
                    self._backward(each.stage, state, first + number - each.age)
        self._stages.share_statistics()
        return state

    def _forward(self, k: int, state: State) -> None:
        weights = self._weights(k, self._staleness.forward[k])
        minibatch, kept = self._stages.forward(k, state["waiting"][k].pop(0), weights)
        state["kept"][k].append({"kept": kept, "weights": weights if self._is_stash else []})
        if k + 1 < len(self._stages):
            state["waiting"][k + 1].append(minibatch)
        else:
            state["back"][k].append(self._stages.turn(minibatch))

    def _backward(self, k: int, state: State, count: Any) -> None:
        entry = state["kept"][k].pop(0)
        weights = entry["weights"] or self._weights(k, self._staleness.backward[k])
        back, gradients = self._stages.backward(k, state["back"][k].pop(0), entry["kept"], weights)
        if k:
            state["back"][k - 1].append(back)
        with self._stages.device(k):
            self._stages.apply(gradients, self._stages.variables[k], count)

    def _weights(self, k: int, steps: int) -> list[Any]:
        weights = self._stages.read(k)
        if self._update is None:
            return weights
        with self._stages.device(k):
            return predict_weights(weights, [self._update(variable) for variable in self._stages.variables[k]], steps)
