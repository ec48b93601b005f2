"""Loss scaling, as both Keras versions call it."""

from __future__ import annotations

import abc
import importlib
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap

KerasLossScaleOptimizer: Any
if KERAS_3:
    KerasLossScaleOptimizer = keras.optimizers.LossScaleOptimizer
else:
    KerasLossScaleOptimizer = importlib.import_module("keras.src.mixed_precision.loss_scale_optimizer").LossScaleOptimizerV3


class BaseLossScaleOptimizer(KerasLossScaleOptimizer):
    """Keras's optimizer of that name, with its variables; `scaled_step` is what a subclass does in each replica.

    It is Keras's own class to `compile`, which wraps no optimizer in a second one, and to files.
    """

    @abc.abstractmethod
    def scaled_step(self, gradients: list[Any], variables: list[Any], *, summed: bool) -> None:
        """Takes a step, or none.

        Args:
            gradients: What a replica computed, or the sums over replicas; `unscale` makes them those of the loss.
            variables: The variables.
            summed: Whether these are sums.
        """

    @property
    def scale_variable(self) -> Any:
        """The variable of the loss scale."""
        return unwrap(self.dynamic_scale) if KERAS_3 else self._loss_scale._current_loss_scale

    @property
    def good_steps(self) -> Any:
        """The variable that counts the steps since the scale was changed."""
        return unwrap(self.step_counter) if KERAS_3 else self._loss_scale._counter

    def unscale(self, gradient: Any) -> Any:
        """A gradient of the loss. Keras 2 has divided already."""
        if not KERAS_3:
            return gradient
        scale = self.scale_variable.read_value()
        if isinstance(gradient, tf.IndexedSlices):
            values = gradient.values / tf.cast(scale, gradient.dtype)
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return gradient / tf.cast(scale, gradient.dtype)

    def _tf_apply(self, grads: Any, trainable_variables: Any = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else trainable_variables
        self._step(grads, variables, summed=False)

    if not KERAS_3:

        def apply_gradients(self, grads_and_vars: Any, skip_gradients_aggregation: bool = False, **kwargs: Any) -> None:
            gradients, variables = zip(*grads_and_vars, strict=True)
            with tf.init_scope():
                self.build(variables)
            summed = skip_gradients_aggregation or not kwargs.get("experimental_aggregate_gradients", True)
            self._step(gradients, variables, summed=summed)

    def _step(self, gradients: Any, variables: Any, *, summed: bool) -> None:
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
        self.scaled_step([g for g, _ in pairs], [v for _, v in pairs], summed=summed)


def is_keras_loss_scale(optimizer: Any) -> bool:
    """Whether an optimizer is Keras's own for loss scaling, whose variables are those of `BaseLossScaleOptimizer`."""
    return type(optimizer) is KerasLossScaleOptimizer
