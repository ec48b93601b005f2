"""Gradients of several batches, for a single step."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import KERAS_3
from tfdist._keras.wrapper import is_given_sums


def accumulate(
    gradients: list[Any], sums: list[tf.Variable], next_batch: Callable[[], tuple[Any, Any]], step: Callable[[list[Any]], None]
) -> None:
    """Adds gradients to sums, or takes a step with the means and begins anew; called in each replica.

    Args:
        gradients: What the replica computed.
        sums: The variables to which they are added; each replica has its own copies.
        next_batch: Called once, outside of the replicas; returns whether a step is due, and of how many batches.
        step: Takes a step in a replica, given the means over the batches.
    """

    def add(values: list[Any]) -> None:
        for total, value in zip(sums, values, strict=True):
            total.assign_add(tf.cast(tf.convert_to_tensor(value), total.dtype))

    def finish(values: list[Any], batches: Any) -> None:
        means = [(tf.convert_to_tensor(v) + s) / tf.cast(batches, s.dtype) for s, v in zip(sums, values, strict=True)]
        with _earlier_steps():
            step(means)
        for total in sums:
            total.assign(tf.zeros_like(total))

    # A condition around what replicas do together must be outside of them: each would wait for the others in its own branch.
    def choose(distribution: Any, values: list[Any]) -> None:
        is_last, batches = next_batch()
        each = distribution.extended.call_for_each_replica
        tf.cond(is_last, lambda: _nothing(each(finish, args=(values, batches))), lambda: _nothing(each(add, args=(values,))))

    tf.distribute.get_replica_context().merge_call(choose, args=(_without_empty(gradients),))


def _without_empty(gradients: list[Any]) -> list[Any]:
    """What a replica computed, or 0 if it had no rows, from which some layers make NaN; called in each replica."""

    def clean(distribution: Any, values: list[Any]) -> list[Any]:
        extended = distribution.extended
        cleaned: list[Any] = extended.without_empty(values) if hasattr(extended, "without_empty") else values
        return cleaned

    return list(tf.distribute.get_replica_context().merge_call(clean, args=(gradients,)))


def _earlier_steps() -> Any:
    extended = tf.distribute.get_strategy().extended
    return extended.sums_of_earlier_steps() if hasattr(extended, "sums_of_earlier_steps") else contextlib.nullcontext()


def correct_under(is_ours: Callable[[Any], bool]) -> None:
    """Makes Keras 3's `gradient_accumulation_steps` work under some strategies, and warns of clipping.

    Keras puts the condition of a step inside the replicas, which TensorFlow refuses (keras-team/keras#20582). Its method is
    wrapped, once; it does as before under every other strategy.

    Args:
        is_ours: Whether a strategy is one of those.
    """
    cls = keras.optimizers.Optimizer
    if not KERAS_3 or hasattr(cls._backend_apply_gradients, "tfdist_wraps"):
        return
    original = cls._backend_apply_gradients

    def apply_gradients(self: Any, grads: list[Any], trainable_variables: list[Any]) -> None:
        strategy = tf.distribute.get_strategy()
        if is_ours(strategy):
            _warn_of_clipping(self, strategy)
        if self.gradient_accumulation_steps and is_ours(strategy):
            _accumulate_in_keras(self, grads, trainable_variables)
        else:
            original(self, grads, trainable_variables)

    apply_gradients.tfdist_wraps = original  # type: ignore[attr-defined]
    cls._backend_apply_gradients = apply_gradients


def _warn_of_clipping(optimizer: Any, strategy: Any) -> None:
    names = [name for name in ("clipnorm", "clipvalue", "global_clipnorm") if getattr(optimizer, name, None)]
    replicas = int(strategy.num_replicas_in_sync)
    if not names or replicas == 1 or is_given_sums(optimizer) or hasattr(strategy, "warned_of_clipping"):
        return
    strategy.warned_of_clipping = True
    if strategy.is_chief:
        argument = f"{names[0]}={getattr(optimizer, names[0])}"
        warnings.warn(
            f"Keras clips what each of {replicas} replicas computed, before the sum: another step than that of one device. Use "
            f"tfdist.optimizers.GlobalClip({type(optimizer).__name__}(...), {argument}).",
            stacklevel=2,
        )


def _accumulate_in_keras(optimizer: Any, gradients: list[Any], variables: list[Any]) -> None:
    """What Keras's own method does, with Keras's own variables."""
    if optimizer.use_ema and optimizer.ema_overwrite_frequency:
        raise ValueError(
            "Keras cannot overwrite weights with their average inside of a strategy's step. Use ema_overwrite_frequency=None, by "
            f"which fit does so at its end. Received: ema_overwrite_frequency={optimizer.ema_overwrite_frequency}."
        )
    steps = optimizer.gradient_accumulation_steps

    def step(means: list[Any]) -> None:
        means = optimizer._clip_gradients(means)
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(means, variables, optimizer.learning_rate)

    sums = [optimizer._accumulated_gradients[optimizer._get_variable_index(variable)].value for variable in variables]
    accumulate(gradients, sums, lambda: ((optimizer._iterations + 1) % steps == 0, steps), step)
    if optimizer.use_ema:
        optimizer._update_model_variables_moving_average(optimizer._trainable_variables)


def _nothing(result: Any) -> Any:
    """The branches of a condition must return the same."""
    del result
    return tf.zeros([])
