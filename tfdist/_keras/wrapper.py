"""Optimizers around optimizers."""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import KERAS_3
from tfdist._keras.slots import Slots

_SUM_METHOD = "_all_reduce_sum_gradients"
Gradients = list[Any]
Variables = list[Any]


class Wrapper(Slots, keras.optimizers.Optimizer, abc.ABC):
    """An optimizer that does something to the gradients, and leaves the variables to another one.

    ```
    apply_local(gradients, variables)     called in each replica, with what it computed itself
    apply_sums(sums, variables)           the same, with the sums over all replicas
    ```

    Args:
        optimizer: The other one.
        name: This one's name.
    """

    wants_local = False

    def __init__(self, optimizer: Any, name: str) -> None:
        super().__init__(**({"learning_rate": 0.0, "name": name} if KERAS_3 else {"name": name, "jit_compile": False}))
        self.inner_optimizer = optimizer

    def apply_local(self, gradients: Gradients, variables: Variables) -> None:
        """Takes a step, given what one replica computed."""
        self.apply_sums(sum_gradients(gradients), variables)

    @abc.abstractmethod
    def apply_sums(self, sums: Gradients, variables: Variables) -> None:
        """Takes a step, given the sums over all replicas."""

    def create_variables(self, variables: Variables) -> None:
        """Makes what this optimizer keeps; called once."""

    # What Keras calls --------------------------------------------------------------------------------------------------------

    def build(self, variables: Any) -> None:
        if not getattr(self, "_wrapper_is_built", False):
            self._wrapper_is_built = True
            if KERAS_3:
                super().build(variables)
            else:
                self._build_index_dict(variables)
            self.create_variables(list(variables))
        build(self.inner_optimizer, list(variables))

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built:
            self.build(variables)
        self.apply_local(*_with_gradients(grads, variables))

    if not KERAS_3:

        def apply_gradients(self, grads_and_vars: Any, name: Any = None, **kwargs: Any) -> Any:
            grads, variables = zip(*grads_and_vars, strict=True)
            with tf.init_scope():
                self.build(variables)
            skip = kwargs.get("skip_gradients_aggregation") or not kwargs.get("experimental_aggregate_gradients", True)
            (self.apply_sums if skip else self.apply_local)(*_with_gradients(grads, list(variables)))
            return self.iterations

    if KERAS_3:

        def scale_loss(self, loss: Any) -> Any:
            return self.inner_optimizer.scale_loss(loss)

    def finalize_variable_values(self, var_list: Any) -> None:
        if hasattr(self.inner_optimizer, "finalize_variable_values"):
            self.inner_optimizer.finalize_variable_values(var_list)

    @property
    def variables(self) -> Any:
        inner = self.inner_optimizer.variables
        found = [*self._variables, *(inner() if callable(inner) else inner)]
        return found if KERAS_3 else _CallableList(found)

    @property
    def learning_rate(self) -> Any:
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    lr = learning_rate

    @property
    def iterations(self) -> Any:
        return self.inner_optimizer.iterations

    @iterations.setter
    def iterations(self, value: Any) -> None:
        self.inner_optimizer.iterations = value

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "optimizer": serialize(self.inner_optimizer)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        return cls(deserialize(config["optimizer"], custom_objects), **{k: v for k, v in config.items() if k != "optimizer"})


class _CallableList(list[Any]):
    def __call__(self) -> _CallableList:
        return self


def serialize(optimizer: Any) -> Any:
    """An optimizer as plain values."""
    return keras.optimizers.serialize(optimizer)


def deserialize(config: Any, custom_objects: Any = None) -> Any:
    """The optimizer that `serialize` described; one that is an optimizer already is returned."""
    return keras.optimizers.deserialize(config, custom_objects=custom_objects) if isinstance(config, dict) else config


def build(optimizer: Any, variables: Variables) -> None:
    """Lets an optimizer make its variables."""
    if not hasattr(optimizer, "build"):
        optimizer._create_all_weights(variables)  # a legacy optimizer of Keras 2
    elif not (KERAS_3 and optimizer.built):
        optimizer.build(variables)


def sum_gradients(gradients: Gradients) -> Gradients:
    """The sums over all replicas; called in each replica."""
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients)))


def wants_local(optimizer: Any) -> bool:
    """Whether an optimizer must be given what a replica computed, since it sums otherwise, or not in each step."""
    return bool(getattr(optimizer, "wants_local", False) or getattr(optimizer, "gradient_accumulation_steps", None))


def apply_local(optimizer: Any, gradients: Gradients, variables: Variables) -> None:
    """Lets an optimizer take a step, given what one replica computed."""
    if KERAS_3:
        optimizer.apply(gradients, variables)
    else:
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


def apply_sums(optimizer: Any, sums: Gradients, variables: Variables) -> None:
    """Lets an optimizer take a step, given the sums over all replicas."""
    pairs = list(zip(sums, variables, strict=True))
    if isinstance(optimizer, Wrapper):
        optimizer.apply_sums(sums, variables)
    elif KERAS_3:
        # Keras 3 has no argument for it, so its method is hidden for this call: replicas pass it in step with each other.
        object.__setattr__(optimizer, _SUM_METHOD, _as_they_are)
        try:
            optimizer.apply(sums, variables)
        finally:
            vars(optimizer).pop(_SUM_METHOD, None)
    elif hasattr(optimizer, "aggregate_gradients"):
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
    else:
        optimizer.apply_gradients(pairs, experimental_aggregate_gradients=False)


def is_given_sums(optimizer: Any) -> bool:
    """Whether an optimizer of Keras 3 is being given sums by the one around it."""
    return _SUM_METHOD in vars(optimizer)


def check_optimizer(optimizer: Any, wrapper: str, reasons: Mapping[str, bool] | None = None) -> None:
    """Refuses what is no optimizer, or one that cannot be inside a wrapper.

    Args:
        optimizer: What was given.
        wrapper: The wrapper's name.
        reasons: Why it cannot, each with whether it holds.

    Raises:
        ValueError: With the wrapper's name, and the first reason that holds.
    """
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(f"`{wrapper}` goes around a Keras optimizer. Received: optimizer={optimizer!r}.")
    for reason, holds in (reasons or {}).items():
        if holds:
            raise ValueError(f"`{wrapper}` cannot go around this optimizer: {reason}. Received: {type(optimizer).__name__}.")


def accumulates(optimizer: Any) -> bool:
    """Whether an optimizer, or one inside it, adds up the gradients of several batches."""
    return _inside(optimizer, lambda o: bool(getattr(o, "gradient_accumulation_steps", None)) or hasattr(o, "accumulates"))


def batches_of_update(optimizer: Any) -> tuple[int, int]:
    """How many batches' gradients wait for a step, and how many a step takes."""
    while optimizer is not None:
        if hasattr(optimizer, "batches_of_update"):
            waiting, steps = optimizer.batches_of_update()
            return int(waiting), int(steps)
        steps = getattr(optimizer, "gradient_accumulation_steps", None)
        if steps:
            return int(optimizer._iterations) % int(steps), int(steps)
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return 0, 1


def accumulating(optimizer: Any) -> Any:
    """The `GradientAccumulation` around, or inside, an optimizer, else None."""
    while optimizer is not None and not hasattr(optimizer, "accumulates"):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def clips(optimizer: Any) -> bool:
    """Whether an optimizer, or one inside it, clips gradients by what every Keras optimizer has for it."""
    return _inside(optimizer, lambda o: any(getattr(o, name, None) for name in ("clipnorm", "clipvalue", "global_clipnorm")))


def needs_all_gradients(optimizer: Any) -> bool:
    """Whether a wrapper around or inside an optimizer does something with the gradients of all variables together."""
    return _inside(optimizer, lambda o: bool(getattr(o, "needs_all_gradients", False)))


def scales_loss(optimizer: Any) -> bool:
    """Whether gradients are given to an optimizer, or one inside it, times a number."""
    return _inside(optimizer, lambda o: hasattr(o, "dynamic_growth_steps") or getattr(o, "loss_scale_factor", None) is not None)


def _inside(optimizer: Any, holds: Callable[[Any], bool]) -> bool:
    while optimizer is not None:
        if holds(optimizer):
            return True
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return False


def _as_they_are(grads_and_vars: Sequence[Any]) -> Sequence[Any]:
    return grads_and_vars


def _with_gradients(gradients: Any, variables: Variables) -> tuple[Gradients, Variables]:
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None]
    if not pairs:
        raise ValueError(f"No gradients were given for any variable. Received: {[v.name for v in variables]}.")
    return [g for g, _ in pairs], [v for _, v in pairs]
