"""What callbacks remember, so that a checkpoint can hold it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

_PLAIN = (bool, int, float, type(None))
# What Keras's own callbacks count and compare with; their other attributes are the arguments of this run.
_OF_KERAS = ("best", "best_epoch", "cooldown_counter", "epochs_since_last_save", "stopped_epoch", "wait")
# What every callback has.
_COMMON = frozenset({"model", "_model", "params", "validation_data", "_chief_worker_only", "_supports_tf_logs"})


def collect(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """For each callback its class, and its state: by `get_state`, or for Keras's own what they count and compare with."""
    return [{"class": type(callback).__name__, "state": _state(callback)} for callback in callbacks]


def restore(callbacks: Sequence[Any], states: Sequence[dict[str, Any]]) -> None:
    """Gives callbacks their states back: the first of a class that of the first, and so on; new ones are left alone."""
    left = list(states)
    for callback in callbacks:
        found = next((state for state in left if state["class"] == type(callback).__name__), None)
        if found is None:
            continue
        left.remove(found)
        if found["state"] is None:
            continue
        if hasattr(callback, "set_state"):
            callback.set_state(found["state"])
        else:
            vars(callback).update(found["state"])


def warn_of_others(callbacks: Sequence[Any]) -> None:
    """Names, in one warning, callbacks of the user that remember something and do not take part."""
    names = sorted({type(c).__name__ for c in callbacks if not _is_known(c) and not hasattr(c, "get_state") and _attributes(c)})
    if names:
        warnings.warn(
            f"These callbacks have attributes that a checkpoint does not hold: {', '.join(names)}. Give them `get_state()`, which "
            "returns a dictionary of plain values, and `set_state(state)`.",
            stacklevel=2,
        )


def _state(callback: Any) -> dict[str, Any] | None:
    if hasattr(callback, "get_state"):
        state: dict[str, Any] = callback.get_state()
        return state
    if not _is_keras(callback):
        return None
    found = {name: value for name, value in vars(callback).items() if name in _OF_KERAS}
    return {name: _plain(value) for name, value in found.items() if isinstance(value, (*_PLAIN, np.number))}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.number) else value


def _attributes(callback: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(callback).items() if name not in _COMMON}


def _is_keras(callback: Any) -> bool:
    return type(callback).__module__.partition(".")[0] == keras.__name__


def _is_known(callback: Any) -> bool:
    return type(callback).__module__.partition(".")[0] in (keras.__name__, "tfdist")
