"""From one optimizer to another, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

from tfdist import _keras
from tfdist.callbacks.place import place

_SHARES = ("sgd_share", "second_share")


def sgd_share(epoch: float, center: float, period: float) -> float:
    """The share of SGD at a place in training.

    ```
    1/2 * exp(2 * (e - center) / period)        before center
    1/2 + (e - center) / period                 until center + period / 2
    1                                           from then on
    ```

    Example:
        >>> [round(sgd_share(e, 10, 5), 3) for e in (0, 5, 10, 11, 12, 12.5, 20)]
        [0.009, 0.068, 0.5, 0.7, 0.9, 1.0, 1.0]
    """
    if epoch < center:
        return 0.5 * math.exp(2 * (epoch - center) / period)
    return min(1.0, 0.5 + (epoch - center) / period)


class OptimizerHandover(keras.callbacks.Callback):
    """Hands training over from one optimizer to another: `tfdist.optimizers.RMSpropToSGD`, or any two in a `Blend`.

    ```
    share of the second    0.5 * exp(2 * (e - center) / period), then 0.5 + (e - center) / period, then 1        e: epochs
    over an interval       (e - start) / (end - start), from 0 to 1
    ```

    The share is set before each step. `logs["sgd_share"]`, or `logs["second_share"]`, is that of the epoch's last batch.

    Args:
        center: The epoch at which both have one half, 0 or more. Defaults to 10.
        period: How many epochs the second half takes, twice, above 0. Defaults to 5.
        interval: The epochs `(start, end)` in which the share rises in a line, instead of `center` and `period`; equal for a
            change at once. Defaults to `None`.

    Raises:
        ValueError: If a number is outside its range; in `fit`, if the optimizer is another one, or the steps of an epoch are not
            known.

    Example:
        >>> handover = OptimizerHandover(center=4, period=2)
        >>> [round(handover.share(e), 2) for e in (2, 3, 4, 4.5, 5)]
        [0.07, 0.18, 0.5, 0.75, 1.0]
        >>> [OptimizerHandover(interval=(2, 4)).share(e) for e in (1, 2, 3.5, 4, 9)]
        [0.0, 0.0, 0.75, 1.0, 1.0]

    Reference:
        Akiba, Suzuki and Fukuda 2017, arXiv 1711.04325, section 3.1. With the slope printed there for the second part, 2 / period,
        the share rises to 1.3 and jumps back; that of 1 / period meets both neighbours, in value and in slope.
    """

    steers = True

    def __init__(self, center: float = 10, period: float = 5, interval: Sequence[float] | None = None) -> None:
        super().__init__()
        _keras.check_number("center", center, lambda c: c >= 0, "a number of epochs, 0 or more")
        _keras.check_number("period", period, lambda p: p > 0, "a number of epochs above 0")
        if interval is not None and not (len(interval) == 2 and 0 <= interval[0] <= interval[1]):
            raise ValueError(f"`interval` must be two epochs, the start and the end, that do not fall. Received: {interval=}.")
        self.center, self.period, self.interval = center, period, None if interval is None else tuple(interval)
        self._epoch = 0
        self._last = 0.0
        self._name = ""

    def share(self, epoch: float) -> float:
        """The share of the second optimizer at a place in training."""
        if self.interval is None:
            return sgd_share(epoch, self.center, self.period)
        start, end = self.interval
        return float(epoch >= end) if epoch >= end or epoch <= start else (epoch - start) / (end - start)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._find()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._last = self.share(place(self._epoch, batch, self.params, self.model.optimizer))
        _keras.unwrap(getattr(self._find(), self._name)).assign(self._last)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs[self._name] = self._last

    def get_config(self) -> dict[str, Any]:
        """The arguments, as plain values; ranks compare them."""
        return {"center": self.center, "period": self.period, "interval": self.interval}

    def _find(self) -> Any:
        """The optimizer that has a share."""
        optimizer = self.model.optimizer
        while optimizer is not None:
            for self._name in _SHARES:
                if hasattr(optimizer, self._name):
                    return optimizer
            optimizer = getattr(optimizer, "inner_optimizer", None)
        raise ValueError(
            "`OptimizerHandover` is for tfdist.optimizers.RMSpropToSGD, which is both optimizers, or for any two in "
            f"tfdist.optimizers.Blend(first, second). Received: {type(_keras.innermost(self.model.optimizer)).__name__}."
        )
