"""Optimizers that were made outside of the strategy's scope."""

from __future__ import annotations

from typing import Any

from tfdist._keras.calls import KERAS_3
from tfdist._keras.rates import inside


def adopt(optimizer: Any, strategy: Any) -> None:
    """Lets an optimizer, and those inside it, be used under a strategy in whose scope they were not made.

    Keras remembers where an optimizer was made, and TensorFlow refuses it elsewhere (Keras 2 only if it keeps an average of the
    weights); a user who gives one to `compile` in the scope means it for the strategy.

    Args:
        optimizer: Any optimizer, or None.
        strategy: The model's.

    Raises:
        ValueError: If it has been built: its slots are on other devices.
    """
    if optimizer is None:
        return
    if getattr(optimizer, "_distribution_strategy", strategy) is not strategy:
        _move(optimizer, strategy)
    for each in inside(optimizer):
        adopt(each, strategy)


def _move(optimizer: Any, strategy: Any) -> None:
    if optimizer.built if KERAS_3 else getattr(optimizer, "_built", False):
        raise ValueError(
            "An optimizer that has trained outside of the strategy's scope keeps its slots there. Make a new one for this "
            f"strategy. Received: {type(optimizer).__name__}, built elsewhere."
        )
    if KERAS_3:
        with strategy.scope():
            for variable in optimizer._variables:
                variable._initialize(variable.numpy())
    optimizer._distribution_strategy = strategy
