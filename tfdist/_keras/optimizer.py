"""What optimizers of ours derive from."""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.addons import AddonsHooks
from tfdist._keras.calls import first_copy
from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap
from tfdist._keras.slots import Slots

_ONLY_KERAS_3 = ("loss_scale_factor", "gradient_accumulation_steps")


class Optimizer(Slots, AddonsHooks, keras.optimizers.Optimizer, abc.ABC):
    """A Keras optimizer, written once for Keras 2 and Keras 3.

    ```
    create_slots(variables)                        once, when the variables are known
    update(gradient, variable, learning_rate)      in each step, with the sum over replicas; for each variable, on each device
    ```

    Args:
        learning_rate: A float, or a `LearningRateSchedule`.
        name: The optimizer's name.
        **kwargs: What every Keras optimizer takes, such as `clipnorm` and `use_ema`.

    Raises:
        ValueError: If `learning_rate` is a number that is no float, or negative.
        TypeError: If an argument is one that this Keras does not have.
    """

    def __init__(self, learning_rate: Any, name: str, **kwargs: Any) -> None:
        _check_rate(learning_rate)
        if KERAS_3:
            super().__init__(learning_rate=learning_rate, name=name, **kwargs)
            return
        for argument in _ONLY_KERAS_3:
            if kwargs.pop(argument, None) is not None:
                raise TypeError(
                    f"Keras 2 has no `{argument}`; use tfdist.optimizers.GradientAccumulation({name}(...), steps) or "
                    f"tfdist.mixed_precision.LossScaleOptimizer({name}(...)). Received: {argument}."
                )
        super().__init__(name=name, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)

    @abc.abstractmethod
    def create_slots(self, variables: Sequence[Any]) -> None:
        """Makes what is kept of each variable, by `add_slots`."""

    @abc.abstractmethod
    def update(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        """Changes a variable on one device.

        Args:
            gradient: The sum over all replicas: a tensor, or `IndexedSlices`.
            variable: The variable.
            learning_rate: A scalar of the variable's dtype.
        """

    def build(self, variables: Any) -> None:
        # Keras's own flag: a name that differs between the two.
        flag = "built" if KERAS_3 else "_built"
        if getattr(self, flag, False):
            if not KERAS_3:
                super().build(variables)
            return
        super().build(variables)
        setattr(self, flag, True)
        self.create_slots(list(variables))

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        rate = self.learning_rate if learning_rate is None else learning_rate
        dtype = variable.dtype
        gradient = gradient if gradient.dtype == dtype else tf.cast(gradient, dtype)
        self.update(gradient, unwrap(variable), tf.cast(unwrap(rate), dtype))

    def get_config(self) -> dict[str, Any]:
        config: dict[str, Any] = super().get_config()
        if not KERAS_3:
            rate = self._serialize_hyperparameter(self._learning_rate)
            config["learning_rate"] = rate if isinstance(rate, dict) else float(rate)
        return config


class LocalOptimizer(Optimizer):
    """An optimizer that is given what each replica computed, all gradients at once, and sums them itself."""

    wants_local = True

    @abc.abstractmethod
    def step(self, distribution: Any, gradients: list[Any], variables: list[Any], learning_rate: Any) -> None:
        """Changes all variables; called once, outside of the replicas.

        Args:
            distribution: The strategy.
            gradients: For each variable, what each replica computed.
            variables: The variables.
            learning_rate: A scalar.
        """

    def update(self, gradient: Any, variable: tf.Variable, learning_rate: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} changes all variables at once.")

    def iterations_now(self) -> Any:
        """The number of steps before this one."""
        return first_copy(unwrap(self._iterations)).read_value()

    def aggregate_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars

    def _backend_update_step(self, grads: Any, trainable_variables: Any, learning_rate: Any) -> None:
        variables = list(trainable_variables)

        def step(distribution: Any, gradients: list[Any]) -> None:
            rate = learning_rate if KERAS_3 else self.learning_rate
            rate = distribution.experimental_local_results(unwrap(rate))[0]
            self.step(distribution, gradients, variables, tf.convert_to_tensor(rate))

        tf.distribute.get_replica_context().merge_call(step, args=(list(grads),))

    def _internal_apply_gradients(self, grads_and_vars: Any) -> Any:
        gradients, variables = zip(*grads_and_vars, strict=True)
        self._backend_update_step(gradients, variables, None)
        if self.use_ema:
            self._update_model_variables_moving_average(variables)
        return self.iterations.assign_add(1)


def check_number(name: str, value: Any, holds: Callable[[float], bool], rule: str) -> None:
    """Refuses what is no number, or breaks a rule.

    Raises:
        ValueError: With the rule and the value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not holds(value):
        raise ValueError(f"`{name}` must be {rule}. Received: {name}={value!r}.")


def _check_rate(learning_rate: Any) -> None:
    if isinstance(learning_rate, bool | int):
        raise ValueError(
            "`learning_rate` must be a float or a LearningRateSchedule, since Keras makes a variable of its type. Received: "
            f"learning_rate={learning_rate!r}."
        )
    if isinstance(learning_rate, float) and not learning_rate >= 0:
        raise ValueError(
            f"`learning_rate` must be 0 or more: a step goes against the gradient. Received: learning_rate={learning_rate}."
        )
