"""Training that goes back when it has gone wrong."""

from __future__ import annotations

import logging
from typing import Any
from typing import NamedTuple

from tfdist import _keras
from tfdist.callbacks.divergence import Divergence
from tfdist.callbacks.rate_factor import RateFactor

_log = logging.getLogger(__name__)


class _Kept(NamedTuple):
    epoch: int
    batch: int
    values: _keras.Snapshot
    rates: list[tuple[RateFactor, dict[str, Any]]]
    position: Any


class RollbackOnDivergence(RateFactor):
    """Goes back to the last good state when the loss is NaN or infinite, or far above what it was.

    ```
    every n batches, and where an epoch begins:    keep weights, slots, loss scale, and the place in the data
    after a batch:                                 its loss is good: what was kept is good; else go back to what is
    ```

    Losses are those of the whole batch, the same on all ranks, so that all go back together. What is kept stays on the devices. The
    epoch has as many steps as before, and its metrics begin anew with the step after. `logs["rollbacks"]` counts.

    Args:
        threshold: A batch's loss above this many times the best of its moving average has diverged, above 1; None for NaN and
            infinity only. Defaults to 10.
        every_steps: How many batches lie between two states that are kept, 1 or more. Defaults to 100.
        skip_batches: Whether the data go on behind the batch that diverged; else the batches since the good state come again.
            Defaults to `False`.
        rate_factor: The learning rate is multiplied by it each time, in (0, 1]. Defaults to 1.
        max_rollbacks: How often, 1 or more, before training ends with an error. Defaults to 3.
        momentum_correction: See `RateFactor`. Defaults to `True`.

    Raises:
        ValueError: If a number is outside its range.
        RuntimeError: In `fit`, if training diverges once more.

    Example:
        >>> history = model.fit(x, y, verbose=0, callbacks=[RollbackOnDivergence(rate_factor=0.5)])
        >>> history.history["rollbacks"]
        [0]

    Limits:
        A dataset that calls Python, or one of another strategy, cannot go back: its data go on. Arrays that Keras shuffles are
        shuffled anew. A state of the epoch before is used if the first batch of an epoch diverges; the data go on then, too. The
        size of the batch is that of the epoch, and stays.
    """

    needs_steps = False

    def __init__(
        self,
        threshold: float | None = 10.0,
        every_steps: int = 100,
        skip_batches: bool = False,
        rate_factor: float = 1.0,
        max_rollbacks: int = 3,
        momentum_correction: bool = True,
    ) -> None:
        super().__init__(momentum_correction)
        if threshold is not None:
            _keras.check_number("threshold", threshold, lambda t: t > 1, "a number above 1")
        _keras.check_number("every_steps", every_steps, lambda n: n >= 1, "a number of batches, 1 or more")
        _keras.check_number("rate_factor", rate_factor, lambda f: 0 < f <= 1, "a number in (0, 1]")
        _keras.check_number("max_rollbacks", max_rollbacks, lambda n: n >= 1, "a number of times, 1 or more")
        self.threshold, self.every_steps, self.skip_batches = threshold, every_steps, skip_batches
        self.rate_factor, self.max_rollbacks = rate_factor, max_rollbacks
        self.rollbacks = 0
        self._divergence = Divergence(threshold)
        self._newest: _Kept | None = None
        self._good: _Kept | None = None
        self._is_new = False
        # Logs are means since metrics were reset: after how many batches of the epoch, and what they were there.
        self._first, self._seen, self._mean = 0, 0, 0.0

    def factor(self, epoch: float) -> float:
        return self.rate_factor**self.rollbacks

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self.rollbacks, self._divergence = 0, Divergence(self.threshold)
        if self.rate_factor < 1:
            super().on_train_begin(logs)
        with self.model.distribute_strategy.scope():
            _keras.build_optimizer(self.model)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._first, self._seen, self._mean = 0, 0, 0.0

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_train_batch_begin(batch, logs)
        is_due = self._newest is None or batch == 0 or batch - self._newest.batch >= self.every_steps
        if is_due and (_keras.batches_of_update(self.model.optimizer)[0] == 0 or self._newest is None):
            self._newest, self._is_new = self._keep(batch), True

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        loss = self._loss_of_batch(batch, logs or {})
        if self._divergence.is_reached(loss):
            self._go_back(batch, loss)
        elif self._is_new:
            self._good, self._is_new = self._newest, False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["rollbacks"] = self.rollbacks

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        self._newest = self._good = None

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "threshold": self.threshold,
            "every_steps": self.every_steps,
            "skip_batches": self.skip_batches,
            "rate_factor": self.rate_factor,
            "max_rollbacks": self.max_rollbacks,
        }

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback."""
        return {**super().get_state(), "rollbacks": self.rollbacks, "divergence": self._divergence.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        super().set_state(state)
        self.rollbacks = int(state["rollbacks"])
        self._divergence.set_state(state["divergence"])

    def _loss_of_batch(self, batch: int, logs: dict[str, Any]) -> float:
        """The mean over the batches since the last call."""
        if "loss" not in logs:
            raise ValueError(f"`RollbackOnDivergence` looks at the loss, which must be in the logs. Received: {sorted(logs)}.")
        mean, seen = float(logs["loss"]), batch + 1 - self._first
        loss = (mean * seen - self._mean * self._seen) / (seen - self._seen)
        self._mean, self._seen = mean, seen
        return loss

    def _keep(self, batch: int) -> _Kept:
        factors = [c for c in _keras.fit_callbacks() if isinstance(c, RateFactor) and c.has_product]
        rates = [(factor, RateFactor.get_state(factor)) for factor in factors[:1]]
        position = None if self.skip_batches else _keras.data_position()
        return _Kept(self._epoch, batch, _keras.Snapshot(self.model), rates, position)

    def _go_back(self, batch: int, loss: float) -> None:
        if self._good is None or self.rollbacks >= self.max_rollbacks:
            raise RuntimeError(
                "Training diverges again and again, or from its first batch: look at the data, or try a lower learning rate. "
                f"Received: max_rollbacks={self.max_rollbacks}, loss={loss} in epoch {self._epoch}, batch {batch}, after "
                f"{self.rollbacks} rollbacks."
            )
        good, self.rollbacks = self._good, self.rollbacks + 1
        good.values.restore()
        for factor, state in good.rates:
            RateFactor.set_state(factor, state)
        again = _keras.go_back(good.position)
        self.model.reset_metrics()
        self._first, self._seen, self._mean = batch + 1, 0, 0.0
        self._newest, self._is_new = None, False
        if getattr(self.model.distribute_strategy, "is_chief", True):
            _log.warning(
                "Epoch %d, batch %d: the loss is %g. Training goes back to epoch %d, batch %d; the data %s.",
                self._epoch, batch, loss, good.epoch, good.batch, "come again" if again else "go on",
            )  # fmt: skip
