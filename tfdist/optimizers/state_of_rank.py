"""Optimizer state that each rank has for itself."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _keras
from tfdist._extended import ranks_of

_log = logging.getLogger(__name__)
_KEY = "rank_and_size"


class StateOfRank:
    """A part of an optimizer: saves and loads variables that differ from rank to rank.

    ```
    file of rank r of R, read by rank q of Q:      q is r modulo Q: its own variables are those of the file
                                                   else:            zeros, and a warning
    ```

    So with a file for each rank, and as many ranks as before, training goes on as if it had never stopped. With one file for all,
    what the other ranks had kept is dropped, but nothing is there twice.
    """

    def mark_as_own(self: Any, variables: list[Any]) -> None:
        """Says which variables are the rank's own; they are not broadcast."""
        for variable in variables:
            variable.tfdist_of_rank = True

    def save_own_variables(self: Any, store: Any) -> None:
        super().save_own_variables(store)  # type: ignore[misc]
        ranks = ranks_of(self._distribution_strategy)
        store[_KEY] = np.array([ranks.rank, ranks.size])

    def load_own_variables(self: Any, store: Any) -> None:
        found = {key: store[key] for key in store.keys() if key != _KEY}  # Keras's store has no iterator
        super().load_own_variables(found)  # type: ignore[misc]
        ranks = ranks_of(self._distribution_strategy)
        rank, size = (int(number) for number in store[_KEY]) if _KEY in store.keys() else (0, 1)
        if (rank, size) == (ranks.rank, ranks.size):
            return
        _log.warning(
            "What rank %d of %d had not sent goes to rank %d of %d; what other ranks had not sent is in their files, or dropped.",
            rank,
            size,
            rank % ranks.size,
            ranks.size,
        )
        if rank % ranks.size != ranks.rank:
            own = [v for v in map(_keras.unwrap, self._variables) if getattr(v, "tfdist_of_rank", False)]
            for variable in own:
                variable.assign(tf.zeros_like(variable))
