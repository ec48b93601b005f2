"""A stage as two functions: forward, and backward from what forward has kept."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import tensorflow as tf

from tfdist import _keras

# What may stand between a weight and its use without being worth keeping.
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
    forward(x, W)         -> y, kept            activations, dropout's mask: not the weights
    backward(dy, kept, W) -> dx, dW             W may be others than those of the forward pass
    ```

    Both come out of one traced graph, which is cut where the backward part begins, so that nothing is computed twice. With
    `recompute`, what is kept are the inputs and what random and stateful operations gave; the rest is computed again.

    Args:
        model: The part, a Keras model; its variables are on the device.
        device: Where it runs.
        wants_input_gradients: Whether dx is needed; not for the first stage.
        recompute: Whether activations are computed again in the backward pass.

    Raises:
        ValueError: If a layer uses a weight in a way that cannot be given another one.
    """

    def __init__(self, model: Any, device: str, wants_input_gradients: bool, recompute: bool = False) -> None:
        self.device = device
        self.variables = [_keras.first_copy(_keras.unwrap(variable)) for variable in model.trainable_variables]
        others = [_keras.first_copy(_keras.unwrap(variable)) for variable in model.non_trainable_variables]
        self.statistics = [variable for variable in others if variable.dtype.is_floating]
        self._model, self._wants_input_gradients, self._recompute = model, wants_input_gradients, recompute
        self._input_specs, self._output_specs = ([_spec(tensor) for tensor in ends] for ends in _keras.model_ends(model))
        self._trace()

    def forward(self, inputs: Sequence[Any], weights: Sequence[Any]) -> Passed:
        """Runs the stage; in a `tf.function`."""
        with tf.device(self.device):
            found = list(self._forward(*inputs, *weights))
        ends = len(self._output_specs)
        return Passed(found[:ends], found[ends], found[ends + 1 : ends + 1 + self._num_kept])

    def backward(
        self, gradients: Sequence[Any], kept: Sequence[Any], weights: Sequence[Any], share: Any
    ) -> tuple[list[Any], list[Any]]:
        """The gradients of the inputs and of the variables, None for those that have none.

        Args:
            gradients: Of the outputs.
            kept: What `forward` has kept.
            weights: Those to go back through.
            share: How much of the layers' own losses counts, a scalar.
        """
        with tf.device(self.device):
            found = iter(self._backward(*gradients, share, *kept, *weights))
        made = [next(found) if has else None for has in self._has_gradient]
        count = len(self._input_specs)
        return made[:count], made[count:]

    def _trace(self) -> None:
        weights = [tf.TensorSpec(variable.shape, variable.dtype) for variable in self.variables]
        specs = [*self._input_specs, *weights, *self._output_specs, tf.TensorSpec([], tf.float32)]
        notes: dict[str, Any] = {}
        graph = tf.compat.v1.wrap_function(lambda *given: self._both(notes, *given), specs)
        self._check_uses(graph)
        tensors = [tensor for tensor in graph.inputs if tensor.dtype != tf.resource]
        inputs, weights, gradients = _split(tensors, len(self._input_specs), len(self.variables))
        operations = graph.graph.get_operations()
        forward, backward = operations[: notes["operations"]], operations[notes["operations"] :]
        is_kept = _is_source(inputs) if self._recompute else _is_in(forward)
        kept = _needed(backward, _names([*weights, *gradients]), is_kept)
        self._num_kept = len(kept)
        updates = [operation for operation in forward if operation.type.startswith("Assign")]
        self._has_gradient = [each is not None for each in notes["made"]]
        self._forward = _as_one(graph.prune([*inputs, *weights], [*notes["outputs"], notes["loss"], *kept, *updates]))
        made = [each for each in notes["made"] if each is not None]
        self._backward = _as_one(graph.prune([*gradients, *kept, *weights], made))

    def _both(self, notes: dict[str, Any], *given: Any) -> Any:
        """The forward and the backward pass in one graph."""
        inputs, weights, gradients = _split(given, len(self._input_specs), len(self.variables))
        with tf.device(self.device):
            outputs, losses = _keras.call_with_weights(self._model, inputs, weights)
            loss = tf.add_n([tf.cast(each, tf.float32) for each in losses] or [tf.zeros([])])
            notes["operations"] = len(tf.compat.v1.get_default_graph().get_operations())
            wanted = [*(inputs if self._wants_input_gradients else []), *weights]
            made = tf.gradients([*outputs, loss], wanted, grad_ys=gradients) if wanted else []
        made = [None if each is None else tf.convert_to_tensor(each) for each in made]
        notes["made"] = made if self._wants_input_gradients else [*[None] * len(inputs), *made]
        notes["outputs"], notes["loss"] = outputs, loss
        return outputs

    def _check_uses(self, graph: Any) -> None:
        captured = {id(external): internal for external, internal in graph.graph.captures}
        for variable, kept in zip(self._model.trainable_variables, self.variables, strict=True):
            handle = captured.get(id(kept.handle))
            if handle is not None and handle.consumers():
                raise ValueError(
                    "A layer of a pipeline must take its weights from its own attributes, since each pass is given other ones. "
                    f"Received: {_keras.variable_path(variable)!r}, which {handle.consumers()[0].name!r} reads by itself."
                )


def _as_one(part: Any) -> Any:
    """The function as one operation, which begins when all that it takes is there.

    TensorFlow would put its operations between the others, where some run before weights are read that others of them take. It
    forgets then that an update comes after that reading.
    """
    return tf.function(part, autograph=False, experimental_attributes={"_noinline": True})


def _needed(operations: Sequence[Any], given: set[str], is_kept: Callable[[Any], bool]) -> list[Any]:
    """The tensors, each once, that operations come down to: those that are to be kept. What is given is not among them."""
    found: dict[str, Any] = {}
    waiting, seen = list(operations), set(operations)
    while waiting:
        for tensor in waiting.pop().inputs:
            if tensor.name in given or tensor.name in found or tensor.dtype == tf.resource or _is_weight(tensor, given):
                continue
            if is_kept(tensor):
                found[tensor.name] = tensor
            elif tensor.op not in seen:
                seen.add(tensor.op)
                waiting.append(tensor.op)
    return list(found.values())


def _is_in(forward: Sequence[Any]) -> Callable[[Any], bool]:
    """Whether the forward pass has made a tensor."""
    names = {operation.name for operation in forward}
    return lambda tensor: tensor.op.name in names and tensor.op.type != "Const"


def _is_source(inputs: Sequence[Any]) -> Callable[[Any], bool]:
    """Whether a tensor could not be computed again from others."""
    names = _names(inputs)
    return lambda tensor: tensor.name in names or tensor.op.op_def.is_stateful


def _is_weight(tensor: Any, given: set[str]) -> bool:
    return tensor.op.type in _VIEWS and (tensor.op.inputs[0].name in given or _is_weight(tensor.op.inputs[0], given))


def _names(tensors: Sequence[Any]) -> set[str]:
    return {tensor.name for tensor in tensors}


def _split(tensors: Sequence[Any], first: int, second: int) -> tuple[list[Any], list[Any], list[Any]]:
    return list(tensors[:first]), list(tensors[first : first + second]), list(tensors[first + second :])


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *tensor.shape[1:]], tf.as_dtype(tensor.dtype))
