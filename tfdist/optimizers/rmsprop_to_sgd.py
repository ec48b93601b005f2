"""RMSprop that becomes momentum SGD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras import check_number
from tfdist._keras import Optimizer
from tfdist._keras import unwrap


@keras.saving.register_keras_serializable(package="tfdist")
class RMSpropToSGD(Optimizer):
    """A sum of RMSprop, which starts well with large batches, and momentum SGD, which ends well.

    ```
    m = mu_2 * m + (1 - mu_2) * g^2
    D = mu_1 * D - (a + (1 - a) * eta_RMS / eta / (sqrt(m) + epsilon)) * g
    w = w + eta * D

    a: sgd_share    eta: learning_rate    eta_RMS: rmsprop_rate    mu_1: momentum    mu_2: rho
    ```

    `tfdist.callbacks.OptimizerHandover` raises `a` from 0 to 1 during training. With `a = 1` it is momentum SGD.

    Args:
        learning_rate: eta, that of SGD; a float, or a `LearningRateSchedule`.
        momentum: mu_1, in [0, 1). Defaults to 0.9.
        rmsprop_rate: eta_RMS, the rate of RMSprop, above 0; it does not follow the learning rate. Defaults to 3e-4.
        rho: mu_2, in [0, 1). Defaults to 0.99.
        epsilon: Above 0. Defaults to 1e-8.
        name: The optimizer's name. Defaults to `"RMSpropToSGD"`.
        **kwargs: What every Keras optimizer takes.

    Attributes:
        sgd_share: a, a variable; 0 at the start.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> w = tf.Variable([1.0])
        >>> optimizer = RMSpropToSGD(0.5, momentum=0.0)
        >>> _ = optimizer.sgd_share.assign(1.0)
        >>> _ = optimizer.apply_gradients([(tf.constant([1.0]), w)])
        >>> w.numpy().tolist()
        [0.5]

    Reference:
        Akiba, Suzuki and Fukuda 2017, arXiv 1711.04325, section 3.1, equations 1 to 3, and its defaults. Slices of embeddings are
        made dense: m falls in each step, whether a row is used or not.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        rmsprop_rate: float = 3e-4,
        rho: float = 0.99,
        epsilon: float = 1e-8,
        name: str = "RMSpropToSGD",
        **kwargs: Any,
    ) -> None:
        check_number("momentum", momentum, lambda m: 0 <= m < 1, "a number in [0, 1)")
        check_number("rmsprop_rate", rmsprop_rate, lambda r: r > 0, "a number above 0")
        check_number("rho", rho, lambda r: 0 <= r < 1, "a number in [0, 1)")
        check_number("epsilon", epsilon, lambda e: e > 0, "a number above 0")
        super().__init__(learning_rate, name, **kwargs)
        self.momentum, self.rmsprop_rate, self.rho, self.epsilon = momentum, rmsprop_rate, rho, epsilon
        self.sgd_share = self.add_number(0.0, "sgd_share")

    def create_slots(self, variables: Sequence[Any]) -> None:
        self.add_slots(variables, "mean_square")
        self.add_slots(variables, "velocity")

    def update(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        gradient, dtype = tf.convert_to_tensor(gradient), variable.dtype
        mean_square, velocity = self.slot("mean_square", variable), self.slot("velocity", variable)
        mean_square.assign(self.rho * mean_square + (1 - self.rho) * tf.square(gradient))
        share = tf.cast(unwrap(self.sgd_share), dtype)
        # A rate of 0 stops SGD; what RMSprop would add to it is 0 as well.
        rmsprop = tf.math.divide_no_nan(tf.cast(self.rmsprop_rate, dtype), learning_rate)
        adapted = rmsprop / (tf.sqrt(mean_square) + tf.cast(self.epsilon, dtype))
        velocity.assign(self.momentum * velocity - (share + (1 - share) * adapted) * gradient)
        variable.assign_add(learning_rate * velocity)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "rmsprop_rate": self.rmsprop_rate,
            "rho": self.rho,
            "epsilon": self.epsilon,
        }
