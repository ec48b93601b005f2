"""The learning rate of an optimizer, and what is kept in proportion to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap


def innermost(optimizer: Any) -> Any:
    """The optimizer inside those that go around it."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def inside(optimizer: Any) -> list[Any]:
    """The optimizer that this one goes around, the two of a `Blend`, or none."""
    found = (getattr(optimizer, name, None) for name in ("inner_optimizer", "second_optimizer"))
    return [each for each in found if each is not None]


def leaves(optimizer: Any) -> list[Any]:
    """The optimizers that change variables: this one, or those inside it."""
    return [leaf for each in inside(optimizer) for leaf in leaves(each)] or [optimizer]


def rate_variable(optimizer: Any) -> tf.Variable:
    """The variable of the learning rate.

    Raises:
        ValueError: If the rate is a schedule, which only the optimizer steps on.
    """
    if not has_number_as_rate(optimizer):
        inner, rate = innermost(optimizer), _rate(optimizer)
        what = "no `learning_rate`" if rate is None else f"learning_rate={type(rate).__name__}"
        raise ValueError(
            "A callback can multiply a learning rate that is a number, not a schedule: the optimizer alone knows where a schedule "
            f"is. Give the optimizer a float, and the schedule as a callback, such as CosineAnnealing. Received: {what} of "
            f"{type(inner).__name__}."
        )
    return unwrap(_rate(optimizer))


def has_number_as_rate(optimizer: Any) -> bool:
    """Whether the learning rate is a variable."""
    return hasattr(unwrap(_rate(optimizer)), "assign")


def rate_now(optimizer: Any) -> float:
    """The learning rate of the next step; that of a schedule, by the optimizer's count."""
    if has_number_as_rate(optimizer):
        return float(rate_variable(optimizer).numpy())
    schedule = _rate(optimizer)
    return float(schedule(unwrap(innermost(optimizer).iterations))) if callable(schedule) else math.nan


def _rate(optimizer: Any) -> Any:
    inner = innermost(optimizer)
    # A legacy optimizer makes the variable when it is asked.
    return inner.lr if not KERAS_3 and hasattr(inner, "_hyper") else getattr(inner, "_learning_rate", None)


def velocities(optimizer: Any) -> list[tf.Variable]:
    """The variables in which past gradients are kept times the learning rate that they had."""
    return [unwrap(variable) for inner in leaves(optimizer) for variable in _velocities(inner)]


def _velocities(inner: Any) -> list[Any]:
    if hasattr(inner, "velocities"):
        return list(inner.velocities())
    if not isinstance(inner, keras.optimizers.SGD | keras.optimizers.RMSprop):
        return [] if KERAS_3 else _legacy_velocities(inner)
    return list(getattr(inner, "momentums", None) or getattr(inner, "_momentums", None) or [])


def _legacy_velocities(optimizer: Any) -> list[Any]:
    legacy = keras.optimizers.legacy
    if not isinstance(optimizer, legacy.SGD | legacy.RMSprop):
        return []
    return [slots["momentum"] for slots in optimizer._slots.values() if "momentum" in slots]


def make_scaler(strategy: Any, variables: list[tf.Variable]) -> Callable[[Any], None]:
    """A compiled function that multiplies variables by a number."""

    @tf.function
    def scale(factor: Any) -> None:
        for variable in variables:
            variable.assign(variable * tf.cast(factor, variable.dtype))

    def call(factor: float) -> None:
        with strategy.scope():
            scale(tf.constant(factor, tf.float32))

    return call
