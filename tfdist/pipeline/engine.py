"""Runs the passes of a schedule in TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import _keras
from tfdist.pipeline.compiled_stage import CompiledStage
from tfdist.pipeline.cut import Cut
from tfdist.pipeline.prediction import predict_weights
from tfdist.pipeline.prediction import smoothed_update
from tfdist.pipeline.rounds import active_passes
from tfdist.pipeline.rounds import draining_rounds
from tfdist.pipeline.rounds import Pass
from tfdist.pipeline.schedule import count_staleness
from tfdist.pipeline.schedule import FORWARD
from tfdist.pipeline.schedule import one_forward_one_backward

Batch = tuple[Any, Any, Any]


class Engine:
    """The stages of a model, and the minibatches that are under way between two calls.

    ```
    waiting[k]    what stage k will take next: tensors of its minibatch, labels, losses of layers
    kept[k]       what its backward passes will need, oldest first
    going_back[k] gradients of what it has made, oldest first
    ```
    """

    def __init__(self, model: Any, cut: Cut, stages: Sequence[CompiledStage]) -> None:
        self._model, self._cut, self._stages = model, cut, list(stages)
        self._variables = [list(part.model.trainable_variables) for part in cut.parts]
        schedule = model.schedule
        self._staleness = count_staleness(one_forward_one_backward, len(stages))
        self._update = smoothed_update(model.optimizer) if schedule == "spectrain" else None
        self._run = tf.function(self._rounds, reduce_retracing=True, autograph=False)
        self._run_microbatches = tf.function(self._microbatches, reduce_retracing=True, autograph=False)
        self._empty()

    def _empty(self) -> None:
        self._number = 0
        self._state: dict[str, list[list[Any]]] = {name: [[] for _ in self._stages] for name in ("waiting", "kept", "going_back")}

    def train(self, batches: Sequence[Batch]) -> None:
        """Rounds with new minibatches."""
        self._advance(list(batches), None)

    def drain(self) -> None:
        """Rounds without one, until all have ended."""
        rounds = draining_rounds(len(self._stages))
        if rounds:
            self._advance([None] * rounds, self._number - 1)
        self._empty()

    def _advance(self, batches: list[Batch | None], last: int | None) -> None:
        if self._number == 0:
            self._base = tf.identity(_keras.unwrap(self._model.optimizer.iterations))
        rounds = range(self._number, self._number + len(batches))
        passes = tuple(tuple(active_passes(len(self._stages), number, last)) for number in rounds)
        first = tf.constant(self._number, tf.int64)
        self._state = self._run(passes, self._state, batches, first, self._base)
        self._number += len(batches)

    # In a graph ------------------------------------------------------------------------------------------------------------

    def _rounds(self, passes: tuple[tuple[Pass, ...], ...], state: Any, batches: list[Any], first: Any, base: Any) -> Any:
        """Several rounds: a stage begins the next one while others are still in this one."""
        state = {name: [list(queue) for queue in queues] for name, queues in state.items()}
        for number, (batch, active) in enumerate(zip(batches, passes, strict=True)):
            if batch is not None:
                state["waiting"][0].append(self._envelope(batch))
            for each in active:
                if each.direction == FORWARD:
                    self._forward(each.stage, state)
                else:
                    self._backward(each.stage, state, base + first + number - each.age)
        return state

    def _envelope(self, batch: Batch) -> dict[str, Any]:
        x, y, sample_weight = batch
        tensors = dict(zip(map(str, self._cut.inputs), tf.nest.flatten(x), strict=True))
        return {"tensors": tensors, "y": y, "sample_weight": sample_weight, "loss": tf.zeros([])}

    def _forward(self, k: int, state: Any) -> None:
        envelope = state["waiting"][k].pop(0)
        part, stage = self._cut.parts[k], self._stages[k]
        weights = self._weights(k, self._staleness.forward[k])
        tensors = envelope["tensors"]
        passed = stage.forward([tensors[str(i)] for i in part.uses], weights)
        later = {str(i): tensors[str(i)] for i in part.carries} | dict(zip(map(str, part.makes), passed.outputs, strict=True))
        entry = {"kept": passed.kept, "weights": weights if self._model.schedule == "stash" else []}
        state["kept"][k].append(entry)
        envelope = {**envelope, "tensors": later, "loss": envelope["loss"] + passed.loss}
        if k + 1 < len(self._stages):
            state["waiting"][k + 1].append(envelope)
        else:
            state["going_back"][k].append(self._loss_gradients(envelope, 1.0))

    def _loss_gradients(self, envelope: Any, share: float) -> dict[str, Any]:
        """The gradients of the loss with respect to the model's outputs; metrics learn what they were."""
        outputs = [envelope["tensors"][str(i)] for i in self._cut.outputs]
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = _keras.loss_of(self._model, outputs, envelope["y"], envelope["sample_weight"], envelope["loss"])
            scaled = loss * share
        _keras.update_metrics(self._model, loss, outputs, envelope["y"], envelope["sample_weight"])
        gradients = tape.gradient(scaled, outputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return dict(zip(map(str, self._cut.outputs), gradients, strict=True))

    def _backward(self, k: int, state: Any, count: Any) -> None:
        entry = state["kept"][k].pop(0)
        weights = entry["weights"] or self._weights(k, self._staleness.backward[k])
        back, gradients = self._go_back(k, state["going_back"][k].pop(0), entry["kept"], weights)
        if k:
            state["going_back"][k - 1].append(back)
        with tf.device(self._stages[k].device):
            _keras.apply_as_step(self._model.optimizer, gradients, self._variables[k], count)

    def _go_back(
        self, k: int, made: dict[str, Any], kept: Sequence[Any], weights: Sequence[Any], share: float = 1.0
    ) -> tuple[dict[str, Any], list[Any]]:
        part, stage = self._cut.parts[k], self._stages[k]
        inputs, gradients = stage.backward([made[str(i)] for i in part.makes], kept, weights, share)
        back = {str(i): made[str(i)] for i in part.carries}
        for i, gradient in zip(part.uses, inputs, strict=True):
            if gradient is not None:
                back[str(i)] = back[str(i)] + gradient if str(i) in back else gradient
        return back, gradients

    def _weights(self, k: int, steps: int) -> list[Any]:
        stage = self._stages[k]
        with tf.device(stage.device):
            weights = [variable.read_value() for variable in stage.variables]
            if self._update is None:
                return weights
            return predict_weights(weights, [self._update(variable) for variable in self._variables[k]], steps)

    def train_by_microbatches(self, batch: Batch) -> None:
        """All forward passes, all backward passes, and one update."""
        rows = int(tf.nest.flatten(batch[0])[0].shape[0])
        count = self._model.microbatches
        if rows % count:
            raise ValueError(
                "A batch is divided into micro-batches of equal size, so that each row counts the same. Received: "
                f"a batch of {rows} rows, microbatches={count}."
            )
        self._run_microbatches(batch)

    def _microbatches(self, batch: Any) -> None:
        count = self._model.microbatches
        pieces = [tf.nest.map_structure(lambda t, m=m: None if t is None else tf.split(t, count)[m], batch) for m in range(count)]
        weights = [self._weights(k, 0) for k in range(len(self._stages))]
        kept: list[list[Any]] = [[] for _ in pieces]
        ends = []
        for m, piece in enumerate(pieces):
            envelope = self._envelope(piece)
            for k, (part, stage) in enumerate(zip(self._cut.parts, self._stages, strict=True)):
                tensors = envelope["tensors"]
                passed = stage.forward([tensors[str(i)] for i in part.uses], weights[k])
                kept[m].append(passed.kept)
                later = {str(i): tensors[str(i)] for i in part.carries} | dict(
                    zip(map(str, part.makes), passed.outputs, strict=True)
                )
                envelope = {**envelope, "tensors": later, "loss": envelope["loss"] + passed.loss}
            ends.append(self._loss_gradients(envelope, 1 / count))
        total: list[list[Any]] = [[] for _ in self._stages]
        for m, back in enumerate(ends):
            for k in reversed(range(len(self._stages))):
                back, gradients = self._go_back(k, back, kept[m][k], weights[k], 1 / count)
                total[k].append(gradients)
        iterations = tf.identity(_keras.unwrap(self._model.optimizer.iterations))
        for k, each in enumerate(total):
            with tf.device(self._stages[k].device):
                sums = [tf.add_n(list(pieces)) for pieces in zip(*each, strict=True)]
                _keras.apply_as_step(self._model.optimizer, sums, self._variables[k], iterations)
