"""What metrics have counted of an epoch that is not over."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfdist._keras.calls import copies
from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap


def metric_state(model: Any, ranks: Any) -> np.ndarray:
    """The values of all copies of the metrics' variables, a row for each rank; all ranks must call it."""
    return ranks.gather_rows(_values(model))


def restore_metrics(model: Any, state: np.ndarray, ranks: Any) -> None:
    """Gives metrics their values back; they are left alone if the state is that of other replicas.

    Keras 2 makes metrics in the first step: there it is added to what they have counted in it.
    """
    values = _values(model)
    if state.shape != (ranks.size, len(values)):
        return
    added = values if not KERAS_3 else np.zeros_like(values)
    place = 0
    for variable in _variables(model):
        mine, length = copies(variable), int(np.prod(variable.shape))
        parts = [slice(place + length * index, place + length * (index + 1)) for index in range(len(mine))]
        for copy, part in zip(mine, parts, strict=True):
            copy.assign((state[ranks.rank, part] + added[part]).reshape(copy.shape).astype(copy.dtype.as_numpy_dtype))
        if hasattr(variable, "tfdist_total"):
            before = sum(state[:, part].sum(0) for part in parts).reshape(variable.shape)
            total = variable.tfdist_total.numpy() if not KERAS_3 else 0
            variable.tfdist_total.assign((before + total).astype(variable.dtype.as_numpy_dtype))
        place += length * len(mine)


def metrics_now(model: Any) -> dict[str, float]:
    """What the metrics say."""
    if KERAS_3:
        return {name: float(value) for name, value in model.get_metrics_result().items() if np.ndim(value) == 0}
    return {metric.name: float(metric.result()) for metric in model.metrics}


def _variables(model: Any) -> list[Any]:
    found = model.metrics_variables if KERAS_3 else [variable for metric in model.metrics for variable in metric.variables]
    return [variable for variable in map(unwrap, found) if variable.dtype.is_floating or variable.dtype.is_integer]


def _values(model: Any) -> np.ndarray:
    parts = [copy.numpy().astype(np.float64).ravel() for variable in _variables(model) for copy in copies(variable)]
    return np.concatenate(parts) if parts else np.zeros(0)
