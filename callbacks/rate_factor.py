"""What callbacks of the learning rate have in common."""

from __future__ import annotations

import abc
from typing import Any

import keras

from tfdist.callbacks.rate_product import RateProduct


class RateFactor(keras.callbacks.Callback, abc.ABC):
    """Multiplies the learning rate by a factor of its own.

    ```
    rate at place e  =  base * product over the callbacks of factor(e)         e: epochs, a fraction within one
    ```

    The order of the callbacks does not matter. The base is what the optimizer was given; between epochs, and after `fit`, the
    optimizer holds the base. `e` is what `fit` is told: it goes on from `initial_epoch`, whatever the optimizer has counted before.
    It is that of the next update: batches whose gradients are added up have one rate, and so have the `steps_per_execution` batches
    that Keras runs at once. At the end of an epoch `logs["learning_rate"]` is the rate of its last batch.

    Args:
        momentum_correction: When the rate changes, whether velocities that have the old rate in them (SGD, RMSprop, LARS) are
            multiplied by new / old.

    Raises:
        ValueError: In `fit`, if the optimizer's rate is a schedule, two callbacks of one class are given, or the steps of an epoch
            are not known.
    """

    steers = True
    needs_steps = True

    def __init__(self, momentum_correction: bool = True) -> None:
        super().__init__()
        self.momentum_correction = momentum_correction
        self._product: RateProduct | None = None
        self._epoch = 0

    @property
    def has_product(self) -> bool:
        """Whether this callback has a factor of a running `fit`."""
        return self._product is not None

    @abc.abstractmethod
    def factor(self, epoch: float) -> float:
        """The factor at a place in training."""

    def get_config(self) -> dict[str, Any]:
        """The arguments, as plain values; ranks compare them."""
        return {"momentum_correction": self.momentum_correction}

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps of this callback: where its product is."""
        return {} if self._product is None else self._product.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        if self._product is not None:
            self._product.set_state(state)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._product = RateProduct.of(self.model, self.params)
        self._product.join(self)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._product is not None:
            self._product.move_to(self._epoch, batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self._product is None:
            return
        if logs is not None:
            logs["learning_rate"] = self._product.rate
        self._product.rest()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._product is not None:
            self._product.rest()
        self._product = None
