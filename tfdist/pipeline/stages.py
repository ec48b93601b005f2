"""The stages of a model, one pass at a time."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import _keras
from tfdist.pipeline.compiled_stage import CompiledStage
from tfdist.pipeline.cut import Cut

Batch = tuple[Any, Any, Any]
Tensors = dict[str, Any]


class Stages:
    """What minibatches run through, as parts of a `tf.function`.

    Under a strategy each rank has its own, which work on the rank's rows of each minibatch. Its optimizer sums the gradients.

    Args:
        model: The `PipelineModel`, compiled.
        cut: Its parts.
        devices: The device of each.
        recompute: Whether activations are computed again in backward passes.
    """

    def __init__(self, model: Any, cut: Cut, devices: Sequence[str], recompute: bool) -> None:
        self._model, self._cut = model, cut
        self._strategy = model.distribute_strategy
        self._replicas = int(self._strategy.num_replicas_in_sync)
        self.variables = [list(part.model.trainable_variables) for part in cut.parts]
        self._compiled = [
            CompiledStage(part.model, device, wants_input_gradients=bool(k), recompute=recompute)
            for k, (part, device) in enumerate(zip(cut.parts, devices, strict=True))
        ]

    def __len__(self) -> int:
        return len(self._compiled)

    def device(self, k: int) -> Any:
        """Places operations where stage k is."""
        return tf.device(self._compiled[k].device)

    def read(self, k: int) -> list[Any]:
        """The weights of stage k as they are."""
        with self.device(k):
            return [variable.read_value() for variable in self._compiled[k].variables]

    def enter(self, batch: Batch, share: Any) -> dict[str, Any]:
        """A minibatch before the first stage.

        Args:
            batch: x, y and sample weights.
            share: How much of the loss counts: what this rank's rows are of all, or a micro-batch of its batch.
        """
        x, y, sample_weight = batch
        # Keras 3 takes the loss of a batch that is known to have no rows for a vector.
        y, sample_weight = tf.nest.map_structure(_with_unknown_rows, (y, sample_weight))
        tensors = dict(zip(map(str, self._cut.inputs), _keras.inputs_of(self._model.model, x), strict=True))
        share = tf.convert_to_tensor(share, tf.float32)
        return {"tensors": tensors, "y": y, "sample_weight": sample_weight, "loss": tf.zeros([]), "share": share}

    def forward(self, k: int, minibatch: dict[str, Any], weights: Sequence[Any]) -> tuple[dict[str, Any], list[Any]]:
        """The minibatch after stage k, and what its backward pass will need."""
        part, tensors = self._cut.parts[k], minibatch["tensors"]
        passed = self._compiled[k].forward([tensors[str(i)] for i in part.uses], weights)
        later = {str(i): tensors[str(i)] for i in part.carries} | dict(zip(map(str, part.makes), passed.outputs, strict=True))
        return {**minibatch, "tensors": later, "loss": minibatch["loss"] + passed.loss}, passed.kept

    def turn(self, minibatch: dict[str, Any]) -> dict[str, Any]:
        """What goes back from the last stage: the loss's gradients; metrics learn what the outputs were."""
        outputs = [minibatch["tensors"][str(i)] for i in self._cut.outputs]
        y, sample_weight = minibatch["y"], minibatch["sample_weight"]
        scale = _keras.loss_scale(self._model.optimizer)
        share = minibatch["share"] * scale
        with tf.GradientTape() as tape:
            tape.watch(outputs)
            loss = _keras.loss_of(self._model, outputs, y, sample_weight, minibatch["loss"])
            scaled = tf.cast(loss, tf.float32) * share * self._replicas  # Keras has divided by it
        _keras.update_metrics(self._model, loss, outputs, y, sample_weight)
        gradients = tape.gradient(scaled, outputs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return {"tensors": dict(zip(map(str, self._cut.outputs), gradients, strict=True)), "share": share, "scale": scale}

    def backward(
        self, k: int, back: dict[str, Any], kept: Sequence[Any], weights: Sequence[Any]
    ) -> tuple[dict[str, Any], list[Any]]:
        """What goes back from stage k, and the gradients of its variables, for `apply`."""
        part, made = self._cut.parts[k], back["tensors"]
        inputs, gradients = self._compiled[k].backward([made[str(i)] for i in part.makes], kept, weights, back["share"])
        earlier = {str(i): made[str(i)] for i in part.carries}
        for i, gradient in zip(part.uses, inputs, strict=True):
            if gradient is not None:
                earlier[str(i)] = earlier[str(i)] + gradient if str(i) in earlier else gradient
        with self.device(k):
            gradients = _keras.rescale(self._model.optimizer, gradients, back["scale"])
        return {**back, "tensors": earlier}, gradients

    def apply(self, gradients: list[Any], variables: list[Any], count: Any) -> None:
        """Lets the optimizer change variables, as its step of a number."""
        _keras.apply_as_step(self._model.optimizer, gradients, variables, count)

    # Under a strategy ----------------------------------------------------------------------------------------------------

    def run(self, fn: Callable[[], Any]) -> Any:
        """Runs a function as a step of the model's strategy, if it has one."""
        return self._strategy.run(fn) if self._model.has_strategy else fn()

    def shares(self, batches: Sequence[Batch | None]) -> list[Any]:
        """What this rank's rows are of each minibatch's."""
        if self._replicas == 1:
            return [tf.ones([])] * len(batches)
        rows = [0 if batch is None else tf.shape(tf.nest.flatten(batch[0])[0])[0] for batch in batches]
        mine = tf.cast(tf.stack(rows), tf.float32)
        return tf.unstack(tf.math.divide_no_nan(mine, self._sum([mine])[0]))

    def share_statistics(self) -> None:
        """Gives all ranks the mean of what layers keep for themselves, such as a batch normalisation's moving averages."""
        variables = [variable for stage in self._compiled for variable in stage.statistics]
        if self._replicas == 1 or not variables:
            return
        sums = self._sum([variable.read_value() / self._replicas for variable in variables])
        for variable, total in zip(variables, sums, strict=True):
            variable.assign(total, read_value=False)

    def _sum(self, values: list[Any]) -> list[Any]:
        return list(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, values))


def _with_unknown_rows(tensor: Any) -> Any:
    return None if tensor is None else tf.compat.v1.placeholder_with_default(tensor, [None, *tensor.shape[1:]])
