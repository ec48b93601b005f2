"""Weights as they will be some updates later."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras


def predict_weights(weights: Sequence[Any], updates: Sequence[Any], steps: int) -> list[Any]:
    """Where weights will be if the next updates are as the last one.

    ```
    W_hat = W + s * u        u: the update, for momentum SGD the velocity; s: the updates that come before
    ```

    Args:
        weights: W.
        updates: u of each, of the same shape.
        steps: s, 0 or more; with 0 they are returned as they are.

    Reference:
        Chen, Yang and Cheng 2018 (SpecTrain), arXiv 1809.02839, equation 4: W - s * eta * v. Keras's velocity is -eta * v already.
    """
    if steps == 0:
        return list(weights)
    return [
        weight + tf.cast(steps, weight.dtype) * tf.cast(update, weight.dtype)
        for weight, update in zip(weights, updates, strict=True)
    ]


def smoothed_update(optimizer: Any) -> Callable[[Any], Any] | None:
    """A function that gives, for a variable, the update that an optimizer is about to repeat; None if it repeats none.

    An optimizer of your own has a method `smoothed_update(variable)`.

    Raises:
        ValueError: If it is not known here what an optimizer keeps.
    """
    inner = _keras.innermost(optimizer)
    if hasattr(inner, "smoothed_update"):
        return lambda variable: inner.smoothed_update(variable)
    if isinstance(inner, keras.optimizers.SGD):
        if not inner.momentum:
            logging.getLogger(__name__).warning("SGD without momentum does not repeat its updates: weights are not predicted.")
            return None
        return lambda variable: _slot(inner, "momentums", variable)
    if isinstance(inner, keras.optimizers.Adam | keras.optimizers.AdamW):
        return lambda variable: _adam(inner, variable)
    raise ValueError(
        "SpecTrain predicts weights by the smoothed update of an optimizer: SGD, Adam, AdamW or LARS; other schedules "
        f"take any. Received: {type(inner).__name__}."
    )


def _adam(optimizer: Any, variable: Any) -> Any:
    """-eta * m_hat / (sqrt(v_hat) + epsilon), with the counts of the last step."""
    first, second = (_slot(optimizer, name, variable) for name in ("momentums", "velocities"))
    count = tf.maximum(tf.cast(_keras.step_number(optimizer), first.dtype), 1.0)
    rate = tf.cast(_rate(optimizer), first.dtype)
    correction = tf.sqrt(1 - tf.pow(optimizer.beta_2, count)) / (1 - tf.pow(optimizer.beta_1, count))
    return -rate * correction * first / (tf.sqrt(second) + optimizer.epsilon)


def _slot(optimizer: Any, name: str, variable: Any) -> Any:
    slots = getattr(optimizer, f"_{name}", None) or getattr(optimizer, name)
    return _keras.first_copy(_keras.unwrap(slots[_keras.index_of(optimizer, variable)])).read_value()


def _rate(optimizer: Any) -> Any:
    rate = _keras.unwrap(optimizer.learning_rate)
    return _keras.first_copy(rate) if isinstance(rate, tf.Variable) else rate
