"""The learning rate of an optimizer, and what is kept in proportion to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import copies
from tfdist._keras.calls import first_copy
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
        return read_number(rate_variable(optimizer))
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


def read_number(variable: Any) -> float:
    """The number in a variable, read without a detour: callbacks do so before each step, where each 0.1 ms counts."""
    copy = first_copy(unwrap(variable))
    return float(tf.raw_ops.ReadVariableOp(resource=copy.handle, dtype=copy.dtype).numpy())


def write_number(variable: Any, value: float) -> None:
    """Gives all copies of a variable a number, in the same way."""
    for copy in copies(unwrap(variable)):
        tf.raw_ops.AssignVariableOp(resource=copy.handle, value=tf.constant(value, copy.dtype))


def make_mover(rate: tf.Variable, velocities: list[tf.Variable]) -> Callable[[float, float], None]:
    """A compiled function that sets the rate, and multiplies velocities by a number."""
    rates, moved = copies(rate), [copy for variable in velocities for copy in copies(variable)]

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)] * 2)
    def move(value: Any, factor: Any) -> None:
        for copy in rates:
            copy.assign(tf.cast(value, copy.dtype), read_value=False)
        for copy in moved:
            copy.assign(copy * tf.cast(factor, copy.dtype), read_value=False)

    compiled = move.get_concrete_function()
    return lambda value, factor: compiled(tf.constant(value, tf.float32), tf.constant(factor, tf.float32))
