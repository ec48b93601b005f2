"""When something stops falling."""

from __future__ import annotations

import math
from typing import Any

from tfdist._keras import check_number


class Plateau:
    """Tells when a number in the logs has not fallen for some epochs.

    Args:
        monitor: Its name in the logs.
        patience: The epochs, 1 or more.
        min_delta: A number that is less than this below the best one has not fallen. Defaults to 1e-4, as in Keras.

    Raises:
        ValueError: If `patience` is below 1; when it is asked, if the logs have no such number.

    Example:
        >>> plateau = Plateau("loss", patience=2)
        >>> [plateau.is_reached({"loss": loss}) for loss in (3.0, 2.0, 2.5, 2.0, 2.0, 2.0)]
        [False, False, False, True, False, True]
    """

    def __init__(self, monitor: str, patience: int, min_delta: float = 1e-4) -> None:
        check_number("patience", patience, lambda p: p >= 1, "a number of epochs, 1 or more")
        self.monitor, self.patience, self._min_delta = monitor, patience, min_delta
        self._best, self._waited = math.inf, 0

    def is_reached(self, logs: dict[str, Any]) -> bool:
        """Whether the patience has run out with this epoch; then it begins anew."""
        if self.monitor not in logs:
            raise ValueError(f"`monitor` must be in the logs, which have {sorted(logs)}. Received: monitor={self.monitor!r}.")
        value = float(logs[self.monitor])
        if value < self._best - self._min_delta:
            self._best, self._waited = value, 0
            return False
        self._waited += 1
        if self._waited < self.patience:
            return False
        self._waited = 0
        return True

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"best": self._best, "waited": self._waited}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        self._best, self._waited = float(state["best"]), int(state["waited"])
