"""Something done to the sums of gradients, just before an optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap
from tfdist._keras.rates import leaves
from tfdist._keras.wrapper import is_given_sums

_STEP_METHOD = "_backend_update_step" if KERAS_3 else "_internal_apply_gradients"


def hook_gradients(optimizer: Any, noise: Callable[[int, Any, Any], Any], owner: Any) -> None:
    """Lets an optimizer add something to each sum of gradients, after clipping; called before its step is traced.

    Args:
        optimizer: Any optimizer; what is added goes to those inside it that change variables.
        noise: What is added, given the variable's place, the gradient, and the steps before this one; the same on all replicas.
        owner: What `owner_of_hook` returns.

    Raises:
        ValueError: If the optimizer is one of Keras's legacy ones.
    """
    for inner in leaves(optimizer):
        if not hasattr(inner, _STEP_METHOD):
            name = type(inner).__name__
            raise ValueError(f"A legacy optimizer cannot be given noise; use one of keras.optimizers. Received: {name}.")
        _hook(inner, noise, owner)


def _hook(inner: Any, noise: Callable[[int, Any, Any], Any], owner: Any) -> None:
    original = getattr(inner, _STEP_METHOD)

    def add(gradients: Any) -> list[Any]:
        share = _share_of_replica(inner)
        step = unwrap(inner.iterations)
        return [_add(gradient, share, noise(index, gradient, step)) for index, gradient in enumerate(gradients)]

    if KERAS_3:

        def step(grads: Any, trainable_variables: Any, learning_rate: Any) -> Any:
            return original(add(grads), trainable_variables, learning_rate)
    else:

        def step(grads_and_vars: Any) -> Any:  # type: ignore[misc]
            gradients, variables = zip(*grads_and_vars, strict=True)
            return original(list(zip(add(gradients), variables, strict=True)))

    step.owner = owner  # type: ignore[attr-defined]
    object.__setattr__(inner, _STEP_METHOD, step)


def unhook_gradients(optimizer: Any) -> None:
    """Takes back what `hook_gradients` did."""
    for inner in leaves(optimizer):
        vars(inner).pop(_STEP_METHOD, None)


def owner_of_hook(optimizer: Any) -> Any:
    """For whom `hook_gradients` was called, and not taken back; None if it was not."""
    hooks = (vars(inner).get(_STEP_METHOD) for inner in leaves(optimizer))
    return next((hook.owner for hook in hooks if hasattr(hook, "owner")), None)


def trace_again(model: Any) -> None:
    """Lets the `fit` that is running trace its step anew."""
    model.make_train_function(force=True)


def _share_of_replica(optimizer: Any) -> Any:
    """What part of a sum one replica must add: Keras 3 and optimizers that sum themselves have not summed yet."""
    summed = is_given_sums(optimizer) if KERAS_3 else not getattr(optimizer, "wants_local", False)
    return 1.0 if summed else 1.0 / tf.distribute.get_strategy().num_replicas_in_sync


def _add(gradient: Any, share: Any, noise: Any) -> Any:
    return tf.convert_to_tensor(gradient) + noise * share
