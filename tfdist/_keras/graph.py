"""The layers of a model as a graph."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import keras
import tensorflow as tf

from tfdist._keras.calls import KERAS_3


class LayerCall(NamedTuple):
    """One call of a layer in a model."""

    layer: Any
    inputs: list[Any]
    outputs: list[Any]


def layer_calls(model: Any) -> list[LayerCall]:
    """The calls of a Sequential or Functional model's layers, each after those whose outputs it takes; inputs are left out.

    Raises:
        ValueError: If the model is neither, or has not been built.
    """
    functional = _functional(model)
    if functional is None:
        raise ValueError(
            "A pipeline is cut from a Sequential model with an Input, or a Functional one, whose layers are known. Received: "
            f"{type(model).__name__} {model.name!r}."
        )
    nodes = [node for depth in sorted(functional._nodes_by_depth, reverse=True) for node in functional._nodes_by_depth[depth]]
    calls = [_call(node) for node in nodes]
    return [call for call in calls if not isinstance(call.layer, keras.layers.InputLayer)]


def model_ends(model: Any) -> tuple[list[Any], list[Any]]:
    """A model's symbolic inputs and outputs."""
    functional = _functional(model)
    return list(tf.nest.flatten(functional.inputs)), list(tf.nest.flatten(functional.outputs))


def output_names(model: Any) -> list[str]:
    """The names of a model's outputs, by which losses and metrics may be given."""
    return list(_functional(model).output_names)


def inputs_of(model: Any, x: Any) -> list[Any]:
    """A batch's inputs in the order of `model_ends`, with the types and ranks that a model's call would give them."""
    functional = _functional(model)
    if KERAS_3:
        return list(tf.nest.flatten(functional._standardize_inputs(x)))
    flat = functional._flatten_to_reference_inputs(x)
    return [functional._conform_to_reference_input(t, ref_input=r) for t, r in zip(flat, functional.inputs, strict=True)]


def outputs_like(model: Any, outputs: list[Any]) -> Any:
    """Outputs, in the order of `model_ends`, in the structure that a model's call gives."""
    functional = _functional(model)
    return tf.nest.pack_sequence_as(functional._outputs_struct if KERAS_3 else functional._nested_outputs, outputs)


def copy_on_devices(model: Any, devices: Mapping[str, str]) -> Any:
    """The same model with layers of its own, whose variables are on devices.

    Args:
        model: A Sequential or Functional model.
        devices: The device of each layer, by the layer's name.
    """

    def copy(layer: Any) -> Any:
        device = devices.get(layer.name)
        if device is None:
            return layer.__class__.from_config(layer.get_config())
        with _placing_on(device):
            made = layer.__class__.from_config(layer.get_config())
        build = made.build

        @functools.wraps(build)  # Keras 3 looks at its arguments
        def build_there(*args: Any, **kwargs: Any) -> Any:
            with _placing_on(device):
                return build(*args, **kwargs)

        object.__setattr__(made, "build", build_there)
        return made

    copied = keras.models.clone_model(model, clone_function=copy)
    copied.set_weights(model.get_weights())
    return copied


def _placing_on(device: str) -> Any:
    """Lets variables be made on a device, also in the scope of a strategy with one replica a process."""
    placing = getattr(tf.distribute.get_strategy().extended, "placing_on", tf.device)
    return placing(device)


def _functional(model: Any) -> Any:
    found = getattr(model, "_functional", None) if KERAS_3 and isinstance(model, keras.Sequential) else model
    return found if hasattr(found, "_nodes_by_depth") and getattr(found, "inputs", None) else None


def _call(node: Any) -> LayerCall:
    if KERAS_3:
        return LayerCall(node.operation, list(node.input_tensors), list(node.outputs))
    return LayerCall(node.layer, list(tf.nest.flatten(node.keras_inputs)), list(tf.nest.flatten(node.outputs)))
