"""What an optimizer remembers of past gradients, set to nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap
from tfdist._keras.rates import leaves
from tfdist._keras.slots import variable_path

# They divide their moments by 1 - beta^t, which is right only if t began with the moments.
_COUNT_FROM_ZERO = ("Adam", "AdamW", "Adamax", "Nadam", "Lamb", "LAMB", "NovoGrad", "RectifiedAdam", "Yogi", "LazyAdam")
_KEPT = ("_model_variables_moving_average", "_accumulated_gradients")


def moments(optimizer: Any) -> list[Any]:
    """The variables in which an optimizer, or those inside it, keep past gradients; empty before the first step."""
    return [variable for inner in leaves(optimizer) for variable in _moments(inner)]


def _moments(inner: Any) -> list[Any]:
    if not KERAS_3 and hasattr(inner, "_slots") and isinstance(inner._slots, dict):  # legacy
        return [slot for slots in inner._slots.values() for slot in slots.values()]
    others = {id(unwrap(v)) for name in _KEPT for v in getattr(inner, name, None) or []}
    others |= {id(unwrap(getattr(inner, name, None))) for name in ("_iterations", "_learning_rate", "_current_learning_rate")}
    others |= {id(unwrap(getattr(inner, name))) for name in getattr(inner, "number_names", ())}
    made = inner.variables
    found = [unwrap(variable) for variable in (made() if callable(made) else made)]
    return [variable for variable in found if id(variable) not in others and variable.dtype.is_floating]


def forget(optimizer: Any, strategy: Any, patterns: Sequence[str] | None, excluded: Sequence[str]) -> list[str]:
    """Sets moments to 0, and with all of them the count of steps of an optimizer whose moments go by it.

    Args:
        optimizer: Any Keras optimizer.
        strategy: The model's.
        patterns: Which moments: regular expressions on the names of their variables; None for all.
        excluded: Which not, in the same way.

    Returns:
        The names of those that were set.
    """
    chosen = []
    with strategy.scope():
        for variable in moments(optimizer):
            name = variable_path(variable)
            wanted = patterns is None or any(re.search(pattern, name) for pattern in patterns)
            if wanted and not any(re.search(pattern, name) for pattern in excluded):
                variable.assign(tf.zeros_like(variable))
                chosen.append(name)
        for inner in leaves(optimizer) if chosen and patterns is None else ():
            if any(cls.__name__ in _COUNT_FROM_ZERO for cls in type(inner).__mro__):
                unwrap(inner._iterations if KERAS_3 else inner.iterations).assign(0)
    return chosen
