"""Variables that start with the same values on all ranks."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

from tfdist import _keras
from tfdist.collectives.executor import Executor


class NewVariables:
    """Remembers the variables that were made, until all ranks have the first rank's values of them.

    Args:
        executor: What reaches the other ranks.
        size: The number of ranks.
    """

    def __init__(self, executor: Executor, size: int) -> None:
        self._executor, self._size = executor, size
        self._new: list[weakref.ref[Any]] = []

    def add(self, variable: Any) -> None:
        """Remembers a variable."""
        if self._size > 1:
            self._new.append(weakref.ref(variable))

    def broadcast_new(self) -> None:
        """Gives all ranks the first rank's values of the variables that were made since the last call."""
        if not self._new:
            return
        call = _keras.current_call()
        with ops.init_scope():
            # What TensorFlow initialises only when it first runs the step that is being traced has to wait.
            alive = [v for v in (ref() for ref in self._new) if v is not None and v.values[0].is_initialized()]
            if call is not None:
                # A rank may have made other models too; the ranks have compared this one.
                used = {id(variable) for variable in _keras.all_variables(call.model)}
                alive = [variable for variable in alive if id(variable) in used]
            chosen = {id(variable) for variable in alive}
            self._new = [ref for ref in self._new if ref() is not None and id(ref()) not in chosen]
            self.broadcast(alive)

    def broadcast(self, variables: Iterable[Any]) -> None:
        """Gives all ranks the first rank's values; all must pass the same variables."""
        variables = [v for v in variables if v.dtype != tf.string and not getattr(v, "tfdist_of_rank", False)]
        if self._size == 1 or not variables:
            return
        shapes = ", ".join(f"{variable.name} {tuple(variable.shape)}" for variable in variables)
        self._executor.meet(lambda: f"receive rank 0's values of {len(variables)} variables: {shapes}", 0)
        for variable in variables:
            copies = getattr(variable, "values", (variable,))
            value = self._executor.communicator.broadcast_array(copies[0].numpy())
            for copy in copies:
                copy.assign(value)
