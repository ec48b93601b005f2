"""A stage as two functions: forward, and backward from what forward has kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfdist import _keras

# What may stand between a variable and its use without being worth keeping.
_VIEWS = ("Cast", "Identity")


class Passed(NamedTuple):
    """What a forward pass gives."""

    outputs: list[Any]
    loss: Any
    """The sum of the layers' own losses, such as regularisation."""
    kept: list[Any]
    """What the backward pass needs of it."""


class CompiledStage:
    """Runs a part of a model forward and, at any later time, backward, with weights that are arguments.

    ```
    forward(x, W)        -> y, kept             activations, dropout's mask, statistics: not the weights
    backward(dy, kept, W) -> dx, dW             W may be others than those of the forward pass
    ```

    Both come out of one traced graph, which is cut where the backward part begins, so that nothing is computed twice.

    Args:
        model: The part, a Keras model; its variables are on the device.
        device: Where it runs.
        wants_input_gradients: Whether dx is needed; not for the first stage.
    """

    def __init__(self, model: Any, device: str, wants_input_gradients: bool) -> None:
        self.device = device
        self.variables = [_keras.unwrap(variable) for variable in model.trainable_variables]
        self._model, self._wants_input_gradients = model, wants_input_gradients
        inputs, outputs = ([_spec(tensor) for tensor in ends] for ends in _keras.model_ends(model))
        self._trace(inputs, outputs)

    def forward(self, inputs: Sequence[Any], weights: Sequence[Any]) -> Passed:
        """Runs the stage; in a `tf.function`."""
        with tf.device(self.device):
            found = self._forward(*inputs, *self._feeds(weights))
        ends = len(self._output_specs)
        return Passed(list(found[:ends]), found[ends], list(found[ends + 1 : ends + 1 + self._num_kept]))

    def backward(
        self, gradients: Sequence[Any], kept: Sequence[Any], weights: Sequence[Any], share: float = 1.0
    ) -> tuple[list[Any], list[Any]]:
        """The gradients of the inputs, None for those that have none, and of the variables.

        Args:
            gradients: Of the outputs.
            kept: What `forward` has kept.
            weights: Those to go back through.
            share: How much of the layers' own losses counts.
        """
        with tf.device(self.device):
            found = iter(self._backward(*gradients, tf.constant(share), *kept, *self._feeds(weights)))
        made = [next(found) if has else None for has in self._has_gradient]
        count = len(self._input_specs)
        return made[:count], made[count:]

    def _trace(self, inputs: list[tf.TensorSpec], outputs: list[tf.TensorSpec]) -> None:
        self._input_specs, self._output_specs = inputs, outputs
        notes: dict[str, Any] = {}

        def both(*tensors: Any) -> Any:
            given, gradients, share = list(tensors[: len(inputs)]), list(tensors[len(inputs) : -1]), tensors[-1]
            with tf.device(self.device):
                found = tf.nest.flatten(self._model(given if len(given) > 1 else given[0], training=True))
                loss = tf.add_n([tf.cast(each, tf.float32) for each in self._model.losses] or [tf.zeros([])])
                notes["operations"] = len(tf.compat.v1.get_default_graph().get_operations())
                wanted = [*(given if self._wants_input_gradients else []), *self.variables]
                made = tf.gradients([*found, loss], wanted, grad_ys=[*gradients, share])
            notes["made"] = [None if each is None else tf.convert_to_tensor(each) for each in made]
            notes["outputs"], notes["loss"] = found, loss
            return found

        wrapped = tf.compat.v1.wrap_function(both, [*inputs, *outputs, tf.TensorSpec([], tf.float32)])
        operations = wrapped.graph.get_operations()
        before = {operation.name for operation in operations[: notes["operations"]]}
        placeholders = [tensor for tensor in wrapped.inputs if tensor.dtype != tf.resource]
        given, gradients = placeholders[: len(inputs)], placeholders[len(inputs) :]
        self._reads = self._find_reads(wrapped, operations)
        reads = [read for each in self._reads for read in each]
        kept = _crossing(operations[notes["operations"] :], before, gradients)
        self._num_kept = len(kept)
        updates = [operation for operation in operations[: notes["operations"]] if operation.type.startswith("Assign")]
        made = notes["made"] if self._wants_input_gradients else [*[None] * len(inputs), *notes["made"]]
        self._has_gradient = [each is not None for each in made]
        self._forward = _as_one(wrapped.prune([*given, *reads], [*notes["outputs"], notes["loss"], *kept, *updates]))
        self._backward = _as_one(wrapped.prune([*gradients, *kept, *reads], [each for each in made if each is not None]))

    def _find_reads(self, wrapped: Any, operations: Sequence[Any]) -> list[list[Any]]:
        """For each variable, the tensors in the graph that are its value."""
        captured = {id(external): internal.op.name for external, internal in wrapped.graph.captures}
        names = [captured.get(id(variable.handle)) for variable in self.variables]
        reads = [operation for operation in operations if operation.type == "ReadVariableOp"]
        return [[read.outputs[0] for read in reads if name and read.inputs[0].op.name == name] for name in names]

    def _feeds(self, weights: Sequence[Any]) -> list[Any]:
        return [weight for weight, reads in zip(weights, self._reads, strict=True) for _ in reads]


def _as_one(part: Any) -> Any:
    """The function as one operation, which begins when all that it takes is there.

    TensorFlow would put its operations between the others, where some run before weights are read that others of them take. It
    forgets then that an update comes after that reading.
    """
    return tf.function(part, autograph=False, experimental_attributes={"_noinline": True})


def _crossing(backward: Sequence[Any], before: set[str], gradients: Sequence[Any]) -> list[Any]:
    """The tensors of the forward part that the backward part takes, each once."""
    found: dict[str, Any] = {}
    given = {tensor.name for tensor in gradients}
    for operation in backward:
        for tensor in operation.inputs:
            is_known = tensor.name in given or tensor.dtype == tf.resource or tensor.op.type == "Const" or _is_weight(tensor)
            if tensor.op.name in before and not is_known:
                found[tensor.name] = tensor
    return list(found.values())


def _is_weight(tensor: Any) -> bool:
    operation = tensor.op
    return operation.type == "ReadVariableOp" or (operation.type in _VIEWS and _is_weight(operation.inputs[0]))


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *tensor.shape[1:]], tf.as_dtype(tensor.dtype))
