"""What a pipeline asks of Keras."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import copies
from tfdist._keras.calls import first_copy
from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap
from tfdist._keras.graph import outputs_like


def unpack_batch(batch: Any) -> tuple[Any, Any, Any]:
    """x, y and sample weights of a batch, None for what it has not."""
    return keras.utils.unpack_x_y_sample_weight(batch)


def call_with_weights(model: Any, inputs: list[Any], weights: list[Any]) -> tuple[list[Any], list[Any]]:
    """Calls a model in training with other values than those of its trainable variables.

    Args:
        model: A Functional model.
        inputs: What it takes.
        weights: Tensors, one for each of its trainable variables.

    Returns:
        Its outputs, and the losses of its layers.
    """
    given = inputs if len(inputs) > 1 else inputs[0]
    if not KERAS_3:
        with _in_attributes(model, weights):
            return list(tf.nest.flatten(model(given, training=True))), list(model.losses)
    variables = [first_copy(unwrap(variable)) for variable in model.non_trainable_variables]
    before = [variable.read_value() for variable in variables]
    outputs, after, losses = model.stateless_call(weights, before, given, training=True, return_losses=True)
    for variable, old, new in zip(variables, before, after, strict=True):
        if new is not old:
            variable.assign(new, read_value=False)
    return list(tf.nest.flatten(outputs)), list(losses)


@contextlib.contextmanager
def _in_attributes(model: Any, weights: list[Any]) -> Iterator[None]:
    """Lets the layers of Keras 2 find tensors where their variables are, also those of regularisers."""
    values = {id(variable): (variable, weight) for variable, weight in zip(model.trainable_variables, weights, strict=True)}
    changed = []
    for layer in model._flatten_layers():
        attributes = vars(layer)
        for name, found in list(attributes.items()):
            if id(found) in values:
                changed.append((attributes, name, found))
                attributes[name] = _as_read(*values[id(found)], layer.compute_dtype)
        losses = attributes.get("_callable_losses")
        if losses:
            changed.append((attributes, "_callable_losses", losses))
            attributes["_callable_losses"] = [_loss_with(each, values) for each in losses]
    try:
        yield
    finally:
        for attributes, name, found in changed:
            attributes[name] = found


def _as_read(variable: Any, weight: Any, compute_dtype: str) -> Any:
    """A weight in the type in which a layer in half precision reads its variable."""
    return tf.cast(weight, compute_dtype) if hasattr(variable, "_should_cast") else weight


def _loss_with(loss: Any, values: dict[int, tuple[Any, Any]]) -> Any:
    """A regulariser's loss, which Keras 2 keeps as a partial function of a variable in another one, of a tensor instead."""
    if not isinstance(loss, functools.partial):
        return loss
    return functools.partial(loss.func, *(values[id(a)][1] if id(a) in values else _loss_with(a, values) for a in loss.args))


def loss_of(model: Any, outputs: list[Any], y: Any, sample_weight: Any, extra: Any) -> Any:
    """The loss of a minibatch that has run through the layers, divided by the number of replicas as Keras does.

    Args:
        model: The `PipelineModel`, compiled.
        outputs: Its outputs.
        y: The labels.
        sample_weight: Their weights, or None.
        extra: The losses of layers.
    """
    model._extra_losses = [extra]
    try:
        return model.compute_loss(None, y, outputs_like(model.model, outputs), sample_weight)
    finally:
        model._extra_losses = None


def update_metrics(model: Any, loss: Any, outputs: list[Any], y: Any, sample_weight: Any) -> None:
    """Lets metrics count a minibatch."""
    if KERAS_3:
        rows = tf.shape(outputs[0])[0]
        whole = loss * tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, loss.dtype)
        model._loss_tracker.update_state(tf.where(rows > 0, whole, tf.zeros_like(whole)), sample_weight=rows)
    model.compute_metrics(None, y, outputs_like(model.model, outputs), sample_weight)


def loss_scale(optimizer: Any) -> Any:
    """What an optimizer wants the loss to be multiplied by now, a scalar."""
    scale = optimizer.scale_loss(tf.ones([])) if KERAS_3 else getattr(optimizer, "loss_scale", 1.0)
    return tf.cast(scale, tf.float32)


def rescale(optimizer: Any, gradients: list[Any], scale: Any) -> list[Any]:
    """Gradients of a loss that was scaled earlier, as the optimizer expects them now.

    Args:
        optimizer: The optimizer; of Keras 3, it divides by the scale of now.
        gradients: Those of the scaled loss.
        scale: What `loss_scale` was then.
    """
    if not hasattr(optimizer, "dynamic_growth_steps"):
        return gradients
    factor = (loss_scale(optimizer) if KERAS_3 else 1.0) / scale
    return [None if gradient is None else gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]


def step_number(optimizer: Any) -> Any:
    """The number of steps that an optimizer has taken, an int64 tensor of its own."""
    return tf.cast(first_copy(unwrap(optimizer.iterations)).read_value() + 0, tf.int64)


def apply_as_step(optimizer: Any, gradients: list[Any], variables: list[Any], count: Any) -> None:
    """Changes some of an optimizer's variables as in its step of a number, which several stages take one after the other."""
    for iterations in copies(unwrap(optimizer.iterations)):
        iterations.assign(tf.cast(count, iterations.dtype), read_value=False)
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    if pairs:
        optimizer.apply_gradients(pairs)


def index_of(optimizer: Any, variable: Any) -> int:
    """A variable's place in the list that the optimizer was built with."""
    return int(optimizer._get_variable_index(variable) if KERAS_3 else optimizer._index_dict[optimizer._var_key(variable)])


def build_metrics(model: Any, batch: tuple[Any, Any, Any]) -> None:
    """Lets a model make its metrics, which are asked for before the first minibatch has come to its end."""
    if KERAS_3:
        model._symbolic_build(data_batch=batch)
        return
    outputs = model(batch[0], training=False)
    if not model.compiled_loss.built:
        model.compiled_loss.build(outputs)
    if model.compiled_metrics is not None and not model.compiled_metrics.built:
        model.compiled_metrics.build(outputs, model.compiled_metrics._conform_to_outputs(outputs, batch[1]))


def has_own_train_step(model: Any) -> bool:
    """Whether a model's class says itself how it is trained."""
    return type(model).train_step is not keras.Model.train_step or type(model).compute_loss is not keras.Model.compute_loss
