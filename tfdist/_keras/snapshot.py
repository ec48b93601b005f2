"""What a training step changes, kept in memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist._keras.calls import copies
from tfdist._keras.rates import has_number_as_rate
from tfdist._keras.rates import rate_variable
from tfdist._keras.training_state import training_variables


class Snapshot:
    """The values of a model's and its optimizer's variables, each where it is: nothing is sent, and nothing written.

    The learning rate is left out, which goes by the place in training.

    Args:
        model: The model, compiled, its optimizer built.
    """

    def __init__(self, model: Any) -> None:
        rate = rate_variable(model.optimizer) if has_number_as_rate(model.optimizer) else None
        variables = [variable for variable in training_variables(model) if variable is not rate]
        # TensorFlow copies a buffer only when it is written to while somebody holds it.
        self._values = [(copy, tf.identity(copy)) for variable in variables for copy in _all_copies(variable)]

    def restore(self) -> None:
        """Gives the variables these values back."""
        for copy, value in self._values:
            copy.assign(value)


def _all_copies(variable: Any) -> list[Any]:
    return [*copies(variable), *([variable.tfdist_total] if hasattr(variable, "tfdist_total") else [])]
