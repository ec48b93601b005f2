"""What a pipeline asks of Keras."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap


def unpack_batch(batch: Any) -> tuple[Any, Any, Any]:
    """x, y and sample weights of a batch, None for what it has not."""
    return keras.utils.unpack_x_y_sample_weight(batch)


def loss_of(model: Any, outputs: list[Any], y: Any, sample_weight: Any, extra: Any) -> Any:
    """The loss of a minibatch that has run through the layers.

    Args:
        model: The model, compiled.
        outputs: Its outputs.
        y: The labels.
        sample_weight: Their weights, or None.
        extra: The losses of layers.
    """
    model._extra_losses = [extra]
    try:
        return model.compute_loss(None, y, outputs if len(outputs) > 1 else outputs[0], sample_weight)
    finally:
        model._extra_losses = None


def update_metrics(model: Any, loss: Any, outputs: list[Any], y: Any, sample_weight: Any) -> None:
    """Lets metrics count a minibatch."""
    if KERAS_3:
        model._loss_tracker.update_state(loss, sample_weight=tf.shape(outputs[0])[0])
    model.compute_metrics(None, y, outputs if len(outputs) > 1 else outputs[0], sample_weight)


def place_slots(optimizer: Any) -> None:
    """Lets an optimizer make each slot on the device of its variable."""
    make = optimizer.add_variable_from_reference

    def make_there(*args: Any, **kwargs: Any) -> Any:
        names = ("reference_variable", "model_variable")
        reference = next((kwargs[name] for name in names if name in kwargs), args[0] if args else None)
        with tf.device(unwrap(reference).device):
            return make(*args, **kwargs)

    object.__setattr__(optimizer, "add_variable_from_reference", make_there)


def apply_as_step(optimizer: Any, gradients: list[Any], variables: list[Any], count: Any) -> None:
    """Changes some of an optimizer's variables as in its step of a number, which several stages take one after the other."""
    unwrap(optimizer.iterations).assign(tf.cast(count, unwrap(optimizer.iterations).dtype))
    optimizer.apply_gradients([(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None])


def index_of(optimizer: Any, variable: Any) -> int:
    """A variable's place in the list that the optimizer was built with."""
    return int(optimizer._get_variable_index(variable) if KERAS_3 else optimizer._index_dict[optimizer._var_key(variable)])


def build_metrics(model: Any, x: Any, y: Any) -> None:
    """Lets a model make its metrics, which are asked for before the first minibatch has come to its end."""
    outputs = model(x, training=False)
    if KERAS_3:
        for container in (model._compile_metrics, model._compile_loss):
            if container is not None and not container.built:
                container.build(y, outputs)
        return
    if not model.compiled_loss.built:
        model.compiled_loss.build(outputs)
    if model.compiled_metrics is not None and not model.compiled_metrics.built:
        model.compiled_metrics.build(outputs, y)
