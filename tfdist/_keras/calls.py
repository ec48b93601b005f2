"""What Keras does inside `fit`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from types import FrameType
from typing import Any
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

VERSION = keras.__version__
KERAS_3 = not VERSION.startswith("2.")

_METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
# What these do to training must be done on every rank. Others, such as loggers, may be on one rank only.
_STEERING = ("EarlyStopping", "LearningRateScheduler", "ReduceLROnPlateau", "TerminateOnNaN")


class Call(NamedTuple):
    """The Keras method of a model that is running."""

    method: str
    model: Any
    arguments: Mapping[str, Any]


def current_call() -> Call | None:
    """Finds the innermost Keras method that this code was called by.

    `tf.distribute` tells a strategy neither the model nor what the user asked for. The call stack does, and it is read only where
    a step is traced or a dataset is handed over, not in each step.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _METHODS:
            model = frame.f_locals.get("self")
            if isinstance(model, keras.Model):
                return Call(frame.f_code.co_name, model, frame.f_locals)
        frame = frame.f_back
    return None


def passes_whole_batch(call: Call | None) -> bool:
    """Whether every replica is handed the same whole batch, which it must then take its rows of."""
    return KERAS_3 and call is not None and call.method.endswith("_on_batch")


def call_settings(call: Call) -> dict[str, Any]:
    """Describes a call by what must be equal on all ranks: plain, nested values."""
    model = call.model
    compiled = getattr(getattr(model, "_compile_config", None), "config", None) or {}
    return {
        call.method: _arguments(call),
        "optimizer": optimizer_settings(getattr(model, "optimizer", None)),
        **{name: _describe(compiled.get(name)) for name in ("loss", "loss_weights", "metrics", "weighted_metrics")},
        "layers": _layers(model),
        "variables": [f"{_path(v)} {tuple(v.shape)} {_dtype(v)}" for v in model.variables],
        "num_trainable_variables": len(model.trainable_variables),
    }


def optimizer_settings(optimizer: Any) -> Any:
    """Describes an optimizer by its class and configuration."""
    if optimizer is None:
        return None
    return {"class": type(optimizer).__name__, **_config(optimizer)}


def is_horovod_optimizer(optimizer: Any) -> bool:
    """Whether Horovod's `DistributedOptimizer` made this optimizer, or one inside it."""
    while optimizer is not None:
        if hasattr(optimizer, "_allreduce_grads") or type(optimizer).__module__.startswith("horovod"):
            return True
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return False


def make_replica_safe(optimizer: Any) -> None:
    """Lets the replicas of one process use tensorflow-addons' MultiOptimizer.

    It keeps the gradients of a step in its own attributes, where replicas, which run as threads in turn, overwrite each other's.
    """
    if type(optimizer).__name__ == "MultiOptimizer" and hasattr(optimizer, "optimizer_specs"):
        specs = optimizer.optimizer_specs
        optimizer.optimizer_specs = [spec if isinstance(spec, _ReplicaSpec) else _ReplicaSpec(spec) for spec in specs]


class _ReplicaSpec(dict[str, Any]):
    """A dictionary whose entry "gv" is each thread's own."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self._own = threading.local()

    def __setitem__(self, key: str, value: Any) -> None:
        if key == "gv":
            self._own.gv = value
        else:
            super().__setitem__(key, value)

    def __getitem__(self, key: str) -> Any:
        return self._own.gv if key == "gv" else super().__getitem__(key)


def is_jit_compiled(model: Any) -> bool:
    """Whether the user asked for XLA; Keras turns its own "auto" off under a strategy."""
    compiled = getattr(getattr(model, "_compile_config", None), "config", None) or {}
    return compiled.get("jit_compile") is True or getattr(model, "_jit_compile", None) is True


def global_metrics(call: Call | None, outputs: Any) -> dict[str, Any]:
    """Computes the metrics that a step reports from their state over all replicas.

    Keras 3 averages what each replica reports, which is wrong for a metric that is no mean, such as AUC, and for replicas with
    different numbers of rows.

    Args:
        call: The running call.
        outputs: What the step returned.

    Returns:
        The metrics among `outputs`, by name; empty if this step reports none.
    """
    if call is None or call.method.startswith("predict") or not isinstance(outputs, Mapping):
        return {}
    results = call.model.get_metrics_result()
    return {name: value for name, value in results.items() if name in outputs and not isinstance(value, Mapping)}


def unwrap(variable: Any) -> tf.Variable:
    """The TensorFlow variable of a Keras 3 variable; any other is returned as it is."""
    return variable.value if KERAS_3 and isinstance(variable, keras.Variable) else variable


def first_copy(variable: Any) -> tf.Variable:
    """The copy of a variable on this process's first device."""
    return variable.values[0] if hasattr(variable, "values") else variable


def copies(variable: Any) -> list[tf.Variable]:
    """The copies of a variable on this process's devices."""
    return list(variable.values) if hasattr(variable, "values") else [variable]


def all_variables(model: Any) -> list[Any]:
    """The TensorFlow variables of a model and its optimizer."""
    optimizer = getattr(model, "optimizer", None)
    slots = getattr(optimizer, "variables", None) or []
    return [unwrap(v) for v in [*model.variables, *(slots() if callable(slots) else slots)]]


def _arguments(call: Call) -> dict[str, Any]:
    given = call.arguments
    plain = {
        name: given[name]
        for name in (
            "batch_size",
            "epochs",
            "initial_epoch",
            "steps_per_epoch",
            "steps",
            "validation_steps",
            "validation_freq",
            "shuffle",
        )
        if name in given
    }
    if call.method == "fit":
        plain["validation"] = bool(given.get("validation_split")) or given.get("validation_data") is not None
    callbacks = given.get("callbacks")
    callbacks = getattr(callbacks, "callbacks", callbacks) or []
    callbacks = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    plain["callbacks that steer training"] = [_describe_callback(each) for each in callbacks if _steers(each)]
    return plain


def _steers(callback: Any) -> bool:
    return type(callback).__name__ in _STEERING or getattr(callback, "steers", False)


def _describe_callback(callback: Any) -> Any:
    name = type(callback).__name__
    return {"class": name, **_config(callback)} if hasattr(callback, "get_config") else name


def _layers(model: Any) -> Any:
    """The configuration of the model, or of each layer where a subclassed model has none."""
    config = _config(model)
    if "layers" in config:
        return [{"class": layer["class_name"], **_plain(layer["config"])} for layer in config["layers"]]
    return [{"class": type(layer).__name__, **_config(layer)} for layer in getattr(model, "layers", [])]


def _config(thing: Any) -> dict[str, Any]:
    try:
        return _plain(thing.get_config())
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return {}


def _plain(value: Any) -> Any:
    """Nested plain values; names that Keras numbers by the order of creation are left out."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if key not in ("name", "build_config", "shared_object_id")}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else _describe(value)


def _describe(thing: Any) -> Any:
    if isinstance(thing, Mapping):
        return {str(key): _describe(inner) for key, inner in thing.items()}
    if isinstance(thing, list | tuple):
        return [_describe(inner) for inner in thing]
    if thing is None or isinstance(thing, str | int | float | bool):
        return thing
    if isinstance(thing, np.generic | np.ndarray):  # Keras 2's learning rates, and tables of preprocessing layers
        return thing.tolist()
    if hasattr(thing, "get_config"):
        return {"class": type(thing).__name__, **_config(thing)}
    return getattr(thing, "__qualname__", type(thing).__name__)


def _path(variable: Any) -> str:
    # Keras numbers layers by the order of creation; only what they call the variable is the same on all ranks.
    return str(getattr(variable, "path", variable.name)).rpartition("/")[2]


def _dtype(variable: Any) -> str:
    return tf.as_dtype(variable.dtype).name
