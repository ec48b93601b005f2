"""An optimizer that forgets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import keras

from tfdist import _keras
from tfdist.callbacks.plateau import Plateau

_log = logging.getLogger(__name__)


class OptimizerRestart(keras.callbacks.Callback):
    """Sets what an optimizer remembers of past gradients to 0 at the beginning of some epochs.

    ```
    v = 0     of momentum;     m = 0, v = 0, t = 0     of Adam and its kin
    ```

    Weights, the learning rate, averages of weights and batches that wait for a step stay. With `CosineAnnealing`, restart both at
    the same epochs.

    Args:
        epochs: At these epochs. Give one of `epochs`, `every` and `monitor`.
        every: At every n-th epoch, 1 or more; not at epoch 0.
        monitor: A name in the logs: after it has not fallen for `patience` epochs.
        patience: Epochs, 1 or more, for `monitor`. Defaults to 3.
        slots: Regular expressions: of what is remembered, those whose variable's name they are found in, such as "velocity". Then t
            stays. Defaults to `None`: all.
        residuals: Whether `DGC` forgets too what it has not sent, and with it the gradients of up to a thousand steps. Defaults to
            `False`.

    Raises:
        ValueError: If not exactly one of the three is given, or a number is outside its range; in `fit`, if nothing has such a
            name.

    Example:
        >>> history = model.fit(x, y, epochs=3, verbose=0, callbacks=[OptimizerRestart(epochs=[2])])

    Reference:
        Loshchilov and Hutter 2016 (SGDR), arXiv 1608.03983, restart the rate; restarts of momentum itself: O'Donoghue and Candes
        2012, arXiv 1204.3982.
    """

    steers = True

    def __init__(
        self,
        epochs: Sequence[int] | None = None,
        every: int | None = None,
        monitor: str | None = None,
        patience: int = 3,
        slots: Sequence[str] | None = None,
        residuals: bool = False,
    ) -> None:
        super().__init__()
        if sum(each is not None for each in (epochs, every, monitor)) != 1:
            raise ValueError(
                f"Give one of `epochs`, `every` and `monitor`. Received: epochs={epochs}, every={every}, monitor={monitor}."
            )
        if every is not None:
            _keras.check_number("every", every, lambda n: n >= 1, "a number of epochs, 1 or more")
        if isinstance(slots, str):
            raise ValueError(f"`slots` must be a list of regular expressions, not one string. Received: slots={slots!r}.")
        self.epochs, self.every, self.slots, self.residuals = epochs, every, slots, residuals
        self._plateau = Plateau(monitor or "", patience)
        self._is_due = False

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        at = epoch in self.epochs if self.epochs is not None else bool(self.every and epoch and epoch % self.every == 0)
        if at or self._is_due:
            self._restart(epoch)
        self._is_due = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._plateau.monitor:
            self._is_due = self._plateau.is_reached(logs or {})

    def get_config(self) -> dict[str, Any]:
        """The arguments, as plain values; ranks compare them."""
        return {
            "epochs": None if self.epochs is None else list(self.epochs),
            "every": self.every,
            "monitor": self._plateau.monitor or None,
            "patience": self._plateau.patience,
            "slots": None if self.slots is None else list(self.slots),
            "residuals": self.residuals,
        }

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback."""
        return {"is_due": self._is_due, "plateau": self._plateau.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        self._is_due = bool(state["is_due"])
        self._plateau.set_state(state["plateau"])

    def _restart(self, epoch: int) -> None:
        model = self.model
        forgotten = _keras.forget(model.optimizer, model.distribute_strategy, self.slots, () if self.residuals else ("residual",))
        if self.slots is not None and not forgotten and int(model.optimizer.iterations.numpy()):
            raise ValueError(f"Nothing that the optimizer remembers has such a name. Received: slots={list(self.slots)}.")
        if getattr(model.distribute_strategy, "is_chief", True):
            _log.info("Epoch %d: the optimizer forgets %d variables.", epoch, len(forgotten))
