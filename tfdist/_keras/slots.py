"""What an optimizer keeps of each variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import KERAS_3
from tfdist._keras.calls import unwrap


def variable_path(variable: Any) -> str:
    """The name of a variable with those of its layers, such as "dense/kernel"."""
    return str(getattr(variable, "path", variable.name)).partition(":")[0]


class Slots:
    """A part of an optimizer: makes variables, in the way of this Keras, and finds them."""

    def add_slots(
        self: Any, variables: Sequence[Any], name: str, only: Sequence[bool] | None = None, *, flat: bool = False
    ) -> None:
        """Makes a variable of zeros like each of some variables.

        Args:
            variables: The variables.
            name: How `slot` finds what is made.
            only: Whether each variable gets one. Defaults to `None`: all do.
            flat: Whether it has one dimension.
        """
        wanted = [True] * len(variables) if only is None else only
        slots = [self._make_slot(v, name, flat) if is_wanted else None for v, is_wanted in zip(variables, wanted, strict=True)]
        # A function hides them from TensorFlow, which would track each variable twice.
        setattr(self, f"_slots_{name}", lambda: slots)

    def _make_slot(self: Any, variable: Any, name: str, flat: bool) -> Any:
        shape = [unwrap(variable).shape.num_elements()] if flat else unwrap(variable).shape
        if not KERAS_3:
            return self.add_variable_from_reference(model_variable=variable, variable_name=name, shape=shape)
        if not flat:
            return self.add_variable_from_reference(variable, name)
        return self.add_variable(tuple(shape), "zeros", variable.dtype, name=f"{variable_path(variable).replace('/', '_')}_{name}")

    def slot(self: Any, name: str, variable: Any) -> tf.Variable:
        """What `add_slots` made for a variable."""
        return unwrap(getattr(self, f"_slots_{name}")()[self.index_of(variable)])

    def slots(self: Any, name: str) -> list[tf.Variable]:
        """All that `add_slots` made under a name, once the optimizer is built."""
        made: list[Any] = getattr(self, f"_slots_{name}", list)()
        return [unwrap(slot) for slot in made if slot is not None]

    def index_of(self: Any, variable: Any) -> int:
        """The variable's place in the list that the optimizer was built with."""
        return int(self._get_variable_index(variable) if KERAS_3 else self._index_dict[self._var_key(variable)])

    def add_number(self: Any, value: int | float, name: str) -> Any:
        """Makes a variable of one number that callbacks may change: int64, or float32 for a float."""
        constant = keras.initializers.Constant(value)
        dtype = "float32" if isinstance(value, float) else "int64"
        self.number_names = (*getattr(self, "number_names", ()), name)
        if KERAS_3:
            return self.add_variable((), constant, dtype, "only_first_replica", name=name)
        return self.add_variable((), tf.as_dtype(dtype), constant, name)
