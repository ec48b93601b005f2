"""LARS: a learning rate for each layer."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras import check_number
from tfdist._keras import first_copy
from tfdist._keras import Optimizer
from tfdist._keras import variable_path
from tfdist.optimizers.patterns import check_patterns
from tfdist.optimizers.patterns import matches
from tfdist.optimizers.patterns import multiplier
from tfdist.optimizers.patterns import NO_LAYERS


@keras.saving.register_keras_serializable(package="tfdist")
class LARS(Optimizer):
    """Momentum SGD whose steps are in proportion to the weights they change, layer by layer.

    ```
    lambda = eta * |w| / (|g| + beta * |w| + epsilon)         1 where |w| or |g| is 0
    v      = m * v - gamma * lambda * (g + beta * w)
    w      = w + v                                            with Nesterov:  w + m * v - gamma * lambda * (g + beta * w)

    eta: trust_coefficient    beta: weight_decay    m: momentum    gamma: learning_rate
    ```

    Biases and normalisation's parameters have lambda = 1 and beta = 0 unless you say otherwise. Use it with warm-up, for batches
    so large that SGD with a scaled rate diverges.

    Args:
        learning_rate: gamma; a float, or a `LearningRateSchedule`.
        momentum: m, in [0, 1). Defaults to 0.9.
        weight_decay: beta, 0 or more. Unlike that of other Keras optimizers it is part of the gradient, as in the paper. Defaults
            to 1e-4.
        trust_coefficient: eta, above 0; None for lambda = 1 everywhere, which is momentum SGD. Defaults to 0.001.
        epsilon: 0 or more. Defaults to 1e-9.
        nesterov: Whether the step looks ahead. Defaults to `False`.
        exclude_from_layer_adaptation: Regular expressions, searched for in a variable's path; what matches has lambda = 1 and
            beta = 0. Defaults to `None`: biases, gammas and betas.
        weight_decay_multipliers: beta of what matches a regular expression is multiplied by a number; the first match counts, also
            for what is excluded. Defaults to `None`.
        name: The optimizer's name. Defaults to `"LARS"`.
        **kwargs: What every Keras optimizer takes: `clipnorm`, `clipvalue`, `global_clipnorm`, `use_ema`, `ema_momentum`,
            `ema_overwrite_frequency`; with Keras 3 also `loss_scale_factor` and `gradient_accumulation_steps`.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> w = tf.Variable([3.0, 4.0])
        >>> lars = LARS(1.0, momentum=0.0, weight_decay=0.0, trust_coefficient=0.1)
        >>> _ = lars.apply_gradients([(tf.constant([0.0, 2.0]), w)])
        >>> w.numpy().round(3).tolist()
        [3.0, 3.5]

    Reference:
        You, Gitman and Ginsburg 2017, arXiv 1708.03888, equations 5 and 6. There the momentum is of `gamma * lambda * g` too, so a
        change of the rate is felt at once in the gradient's part and slowly in the velocity. The norms are those of the sum over
        replicas, in float32. Slices of embeddings have lambda = 1 and beta = 0: their norm is not that of the layer.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust_coefficient: float | None = 0.001,
        epsilon: float = 1e-9,
        nesterov: bool = False,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        weight_decay_multipliers: Mapping[str, float] | None = None,
        name: str = "LARS",
        **kwargs: Any,
    ) -> None:
        check_number("momentum", momentum, lambda m: 0 <= m < 1, "a number in [0, 1)")
        check_number("weight_decay", weight_decay, lambda d: d >= 0, "a number of 0 or more")
        check_number("epsilon", epsilon, lambda e: e >= 0, "a number of 0 or more")
        if trust_coefficient is not None:
            check_number("trust_coefficient", trust_coefficient, lambda t: t > 0, "a number above 0, or None for plain momentum")
        excluded = check_patterns("exclude_from_layer_adaptation", exclude_from_layer_adaptation)
        multipliers = dict(weight_decay_multipliers or {})
        check_patterns("weight_decay_multipliers", tuple(multipliers))
        for pattern, number in multipliers.items():
            check_number(f"weight_decay_multipliers[{pattern!r}]", number, lambda n: n >= 0, "a number of 0 or more")
        super().__init__(learning_rate, name, weight_decay=None, **kwargs)
        self.momentum, self.nesterov = momentum, nesterov
        self.trust_coefficient, self.epsilon = trust_coefficient, epsilon
        self.exclude_from_layer_adaptation = excluded
        self.weight_decay_multipliers = multipliers
        self._decay = 0.0 if self.decays_apart else float(weight_decay)
        self._rules: list[tuple[bool, float]] = []

    def create_slots(self, variables: Sequence[Any]) -> None:
        self.add_slots(variables, "velocity")
        self._rules = [self._rule(variable_path(variable)) for variable in variables]

    def smoothed_update(self, variable: Any) -> Any:
        """The update that is likely to come next, by which `PipelineModel` predicts weights."""
        return first_copy(self.slot("velocity", variable)).read_value()

    def velocities(self) -> list[Any]:
        """The velocity of each variable; it has the rates of past steps in it, which callbacks correct."""
        return self.slots("velocity")

    def update(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        velocity, momentum = self.slot("velocity", variable), tf.cast(self.momentum, variable.dtype)
        if isinstance(gradient, tf.IndexedSlices):
            _update_slices(gradient, variable, velocity, momentum, learning_rate, self.nesterov)
            return
        adapted, decay = self._rules[self.index_of(variable)]
        if adapted:
            learning_rate = learning_rate * tf.cast(self._trust(gradient, variable, decay), variable.dtype)
        if decay:
            gradient = gradient + tf.cast(decay, variable.dtype) * variable
        # One pass over the data. It rounds as Keras's SGD does, which has a pass for each operation.
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=velocity.handle,
            lr=learning_rate,
            grad=gradient,
            momentum=momentum,
            use_nesterov=self.nesterov,
        )

    def get_config(self) -> dict[str, Any]:
        excluded = self.exclude_from_layer_adaptation
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "weight_decay": self._decay,
            "trust_coefficient": self.trust_coefficient,
            "epsilon": self.epsilon,
            "nesterov": self.nesterov,
            "exclude_from_layer_adaptation": None if excluded is None else list(excluded),
            "weight_decay_multipliers": dict(self.weight_decay_multipliers),
        }

    def _rule(self, path: str) -> tuple[bool, float]:
        """Whether a variable has a trust ratio, and its decay."""
        excluded = matches(path, NO_LAYERS if self.exclude_from_layer_adaptation is None else self.exclude_from_layer_adaptation)
        decay = self._decay * multiplier(path, self.weight_decay_multipliers, 0.0 if excluded else 1.0)
        return self.trust_coefficient is not None and not excluded, decay

    def _trust(self, gradient: Any, variable: Any, decay: float) -> Any:
        w_norm, g_norm = _norm(variable), _norm(gradient)
        trust = self.trust_coefficient * w_norm / (g_norm + decay * w_norm + self.epsilon)
        return tf.where((w_norm > 0) & (g_norm > 0), trust, 1.0)


def _norm(x: Any) -> Any:
    # One pass over the data, where tf.norm has three.
    return tf.sqrt(2.0 * tf.nn.l2_loss(tf.cast(x, tf.float32)))


def _update_slices(
    gradient: tf.IndexedSlices, variable: tf.Variable, velocity: tf.Variable, momentum: Any, learning_rate: Any, nesterov: bool
) -> None:
    step = tf.IndexedSlices(-gradient.values * learning_rate, gradient.indices)
    velocity.assign(velocity * momentum)
    velocity.scatter_add(step)
    if nesterov:
        variable.scatter_add(step)
        variable.assign_add(velocity * momentum)
    else:
        variable.assign_add(velocity)
