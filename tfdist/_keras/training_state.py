"""Everything that training goes on from, as arrays."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tfdist._keras.calls import first_copy
from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap
from tfdist._keras.rates import has_number_as_rate
from tfdist._keras.rates import inside
from tfdist._keras.rates import rate_variable
from tfdist._keras.slots import variable_path
from tfdist._keras.wrapper import build

_PYTHON, _NUMPY = 625, 624
_GAUSS = 1


def training_state(model: Any, ranks: Any) -> dict[str, np.ndarray]:
    """The values of a model's and its optimizer's variables, and random states; all ranks must call it.

    Args:
        model: The model, compiled, its optimizer built.
        ranks: What reaches the others.

    Returns:
        The same on all ranks: "v0", "v1" ... for variables, "own3" with a row for each rank where each has its own; "random".
    """
    arrays = {}
    for index, variable in enumerate(training_variables(model)):
        if getattr(variable, "tfdist_of_rank", False):
            arrays[f"own{index}"] = ranks.gather_rows(first_copy(variable).numpy())
        else:
            arrays[f"v{index}"] = np.asarray(variable.numpy() if hasattr(variable, "numpy") else variable.read_value().numpy())
    return {**arrays, "random": ranks.gather_rows(_random_state())}


def restore_training(model: Any, arrays: dict[str, np.ndarray], ranks: Any) -> None:
    """Gives variables and random states their values back.

    Args:
        model: The model, whose optimizer is built.
        arrays: What `training_state` returned, on any number of ranks.
        ranks: Which of how many this is.
    """
    for index, variable in enumerate(training_variables(model)):
        if f"own{index}" in arrays:
            variable.assign(arrays[f"own{index}"][ranks.rank :: ranks.size].sum(0).astype(variable.dtype.as_numpy_dtype))
        else:
            variable.assign(arrays[f"v{index}"])
    states = arrays["random"]
    _set_random_state(states[ranks.rank % len(states)])


def signature(model: Any) -> list[str]:
    """What a checkpoint's variables must be those of."""
    names = _class_names(model.optimizer)
    # Keras numbers layers by the order of creation; only what they call the variable is the same in another process.
    return [*names, *(f"{variable_path(v).rpartition('/')[2]} {tuple(v.shape)}" for v in map(unwrap, _keras_variables(model)))]


def _class_names(optimizer: Any) -> list[str]:
    """That of an optimizer, and those of the ones inside it."""
    return [type(optimizer).__name__, *(name for each in inside(optimizer) for name in _class_names(each))]


def build_optimizer(model: Any) -> None:
    """Lets the optimizer make its variables; called in the strategy's scope."""
    build(model.optimizer, list(model.trainable_variables))


def training_variables(model: Any) -> list[Any]:
    """The TensorFlow variables of a model and its optimizer, without those of metrics."""
    made = model.optimizer.variables
    found = [unwrap(v) for v in [*_keras_variables(model), *(made() if callable(made) else made)]]
    # Keras 2 does not count the learning rate and the loss scale among an optimizer's variables.
    others = [rate_variable(model.optimizer)] if has_number_as_rate(model.optimizer) else []
    if hasattr(model.optimizer, "scale_variable"):
        others += [model.optimizer.scale_variable, model.optimizer.good_steps]
    return found + [variable for variable in others if not any(variable is other for other in found)]


def _keras_variables(model: Any) -> list[Any]:
    if not KERAS_3:
        return list(model.weights)
    metrics = {id(variable) for variable in model.metrics_variables}
    # Those that are no weights are the states of random layers.
    return [variable for variable in model.variables if id(variable) not in metrics]


def _random_state() -> np.ndarray:
    """The states of Python's and NumPy's global generators; whole numbers below 2^32 are exact in float64."""
    _, python, gauss = random.getstate()
    _, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    return np.array([*python, np.nan if gauss is None else gauss, *keys, place, has_gauss, cached], np.float64)


def _set_random_state(state: np.ndarray) -> None:
    python, gauss, rest = state[:_PYTHON], state[_PYTHON], state[_PYTHON + _GAUSS :]
    random.setstate((3, tuple(int(number) for number in python), None if np.isnan(gauss) else float(gauss)))
    keys, (place, has_gauss, cached) = rest[:_NUMPY], rest[_NUMPY:]
    np.random.set_state(("MT19937", keys.astype(np.uint32), int(place), int(has_gauss), float(cached)))
