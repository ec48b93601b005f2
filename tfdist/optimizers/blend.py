"""Two optimizers in one, by shares."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras


@keras.saving.register_keras_serializable(package="tfdist")
class Blend(_keras.Wrapper):
    """Moves weights by a share of each of two optimizers' steps, so that training can be handed from one to the other.

    ```
    w = (1 - a) * A(w, G) + a * B(w, G)        a: second_share    A, B: the weights after a step of the first, the second optimizer
    G = sum over replicas of g
    ```

    Both see every gradient, so that B's moments are warm when its share rises, at the cost of both steps. With `a = 0` it is A to
    the bit, with `a = 1` it is B. `tfdist.callbacks.OptimizerHandover` raises `a` over an interval.

    Args:
        first: A, any Keras optimizer whose learning rate is a number; this one's learning rate is that of A.
        second: B, the same; its rate keeps its ratio to that of A, so that callbacks of the rate reach both.
        name: The optimizer's name. Defaults to `"Blend"`.

    Attributes:
        second_share: a, a variable; 0 at the start.

    Raises:
        ValueError: If an optimizer has a schedule or the rate 0, accumulates, scales the loss, sends less than the whole gradient,
            or keeps an average of the weights.

    Example:
        >>> w = tf.Variable(1.0)
        >>> blend = Blend(keras.optimizers.SGD(0.5), keras.optimizers.SGD(0.1))
        >>> _ = blend.second_share.assign(0.25)
        >>> _ = blend.apply_gradients([(tf.constant(1.0), w)])
        >>> round(float(w.numpy()), 3)
        0.6

    Reference:
        The sum of two optimizers is that of Akiba, Suzuki and Fukuda 2017, arXiv 1711.04325, section 3.1, whose RMSprop and SGD
        share one velocity: that is `RMSpropToSGD`.
    """

    def __init__(self, first: Any, second: Any, name: str = "Blend") -> None:
        for optimizer in (first, second):
            _check(optimizer)
        super().__init__(first, name)
        self.second_optimizer = second
        self.second_share = self.add_number(0.0, "second_share")
        rates = [float(_keras.rate_variable(optimizer).numpy()) for optimizer in (first, second)]
        if not rates[0] > 0:
            raise ValueError(
                "The rate of `second` keeps its ratio to that of `first`, which must be above 0. Received: "
                f"learning_rate={rates[0]}."
            )
        self._ratio = rates[1] / rates[0]

    def create_variables(self, variables: list[Any]) -> None:
        _keras.build(self.second_optimizer, variables)

    def apply_sums(self, sums: list[Any], variables: list[Any]) -> None:
        share = tf.identity(_keras.unwrap(self.second_share))
        before = _values(variables)
        _keras.apply_sums(self.inner_optimizer, sums, variables)
        by_first = _values(variables)
        _assign(variables, before, self._set_second_rate)
        _keras.apply_sums(self.second_optimizer, sums, variables)
        _assign(variables, [_mix(*pair, share) for pair in zip(by_first, _values(variables), strict=True)])

    @property
    def variables(self) -> Any:
        found = super().variables
        second = self.second_optimizer.variables
        return type(found)([*found, *(second() if callable(second) else second)])

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "second": _keras.serialize(self.second_optimizer)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Blend:
        first, second = (_keras.deserialize(config[name], custom_objects) for name in ("optimizer", "second"))
        return cls(first, second, config["name"])

    def _set_second_rate(self) -> None:
        first, second = (_keras.rate_variable(optimizer) for optimizer in (self.inner_optimizer, self.second_optimizer))
        second.assign(first.read_value() * self._ratio)


def _values(variables: list[Any]) -> list[Any]:
    return [tf.identity(_keras.unwrap(variable)) for variable in variables]


def _mix(first: Any, second: Any, share: Any) -> Any:
    share = tf.cast(share, first.dtype)
    # What has no share may be infinite.
    return tf.where(share <= 0, first, tf.where(share >= 1, second, (1 - share) * first + share * second))


def _assign(variables: list[Any], values: list[Any], then: Any = lambda: None) -> None:
    def assign(distribution: Any, values: list[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            distribution.extended.update(_keras.unwrap(variable), lambda v, x: v.assign(x), args=(value,), group=False)
        then()

    tf.distribute.get_replica_context().merge_call(assign, args=(values,))


def _check(optimizer: Any) -> None:
    reasons = {
        "accumulation goes around: GradientAccumulation(Blend(first, second), steps)": _keras.accumulates(optimizer),
        "loss scaling goes around: LossScaleOptimizer(Blend(first, second))": _keras.scales_loss(optimizer),
        "it sums itself": _keras.wants_local(optimizer),
        "the average of the weights would be that of its own steps": bool(getattr(optimizer, "use_ema", False)),
    }
    _keras.check_optimizer(optimizer, "Blend", reasons)
