"""The learning rate as a product, to which each callback has one factor."""

from __future__ import annotations

import math
import weakref
from typing import Any
from typing import ClassVar
from typing import Protocol

from tfdist import _keras
from tfdist.callbacks.place import place

# What a float32 variable gives back of the number that it was given.
_SAME = 1e-6


class Factor(Protocol):
    """What `RateProduct` asks of a callback."""

    momentum_correction: bool
    needs_steps: bool

    def factor(self, epoch: float) -> float:
        """The factor at a place in training, in epochs."""


class RateProduct:
    """The learning rate of a model during one `fit`.

    ```
    rate = base * product of the factors          while batches are trained on
    rate = base                                   between epochs, and after fit
    ```

    So files that are written between epochs hold the base, and so does the optimizer for the next `fit`. Callbacks of Keras that
    set the rate between epochs, such as `ReduceLROnPlateau`, set the base.

    Args:
        model: The model, compiled.
        params: The dictionary that Keras gives to all callbacks of one `fit`.
    """

    _of_models: ClassVar[weakref.WeakKeyDictionary[Any, RateProduct]] = weakref.WeakKeyDictionary()

    def __init__(self, model: Any, params: dict[str, Any]) -> None:
        self._model = weakref.ref(model)
        self._params = params
        self._variable = _keras.rate_variable(model.optimizer)
        self._owners: list[Factor] = []
        self._base = self._read()
        self._written = self._base
        self._place: tuple[int, int] | None = None
        # What velocities are in proportion to: the rate without the factors that do not want them corrected.
        self._in_velocities: float | None = None
        self._mover: Any = None

    @classmethod
    def of(cls, model: Any, params: dict[str, Any]) -> RateProduct:
        """The product of the `fit` that is running."""
        product = cls._of_models.get(model)
        if product is not None and product._params is not params:
            product.rest()  # its fit was interrupted
        if product is None or product._params is not params:
            product = cls._of_models[model] = cls(model, params)
        return product

    @property
    def rate(self) -> float:
        """The rate of the last batch."""
        return self._written

    @property
    def factors(self) -> list[Factor]:
        """The callbacks that have a factor, in the order of the list."""
        return list(self._owners)

    def join(self, owner: Factor) -> None:
        """Adds a factor.

        Raises:
            ValueError: If another callback of the same class has one.
        """
        name = type(owner).__name__
        if any(type(other) is type(owner) for other in self._owners):
            raise ValueError(f"Each factor of the learning rate has one owner. Received: {name} twice in `callbacks`.")
        self._owners.append(owner)

    def move_to(self, epoch: int, batch: int) -> None:
        """Sets the rate of a batch; only the first of several calls for the same batch does anything."""
        if self._place == (epoch, batch):
            return
        self._take_over()
        self._place = (epoch, batch)
        position = self._position(epoch, batch)
        factors = {owner: owner.factor(position) for owner in self._owners}
        corrected = self._base * math.prod(factor for owner, factor in factors.items() if owner.momentum_correction)
        self._written = self._base * math.prod(factors.values())
        before, self._in_velocities = self._in_velocities, corrected
        if before and abs(corrected - before) > _SAME * before:
            self._move(self._written, corrected / before)
        else:
            self._write(self._written)

    def rest(self) -> None:
        """Gives the optimizer its base rate."""
        self._take_over()
        if self._place is not None:
            self._write(self._base)
        self._place = None

    def get_state(self) -> dict[str, Any]:
        """What a checkpoint keeps: in the middle of an epoch the optimizer's own variable does not hold the base."""
        return {"in_velocities": self._in_velocities, "base": None if self._place is None else self._base}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on from what `get_state` returned."""
        self._in_velocities = state.get("in_velocities")
        if self._place is None:
            if state.get("base") is not None:
                self._write(state["base"])
            self._base = self._read()

    def _position(self, epoch: int, batch: int) -> float:
        """Where the next update is, in epochs: that of the first batch of those whose gradients it adds up."""
        if not any(owner.needs_steps for owner in self._owners):
            return float(epoch)
        model = self._model()
        return place(epoch, batch, self._params, None if model is None else model.optimizer)

    def _take_over(self) -> None:
        """Makes what another callback has set the base: a rate between epochs, and the change of a rate within one."""
        found = self._read()
        now = self._written if self._place is not None else self._base
        if abs(found - now) <= _SAME * abs(now):
            return
        self._base = found if self._place is None or now == 0 else self._base * found / now

    def _move(self, rate: float, ratio: float) -> None:
        """Sets the rate, and corrects the velocities for it."""
        model = self._model()
        if self._mover is None and model is not None:
            self._mover = _keras.make_mover(self._variable, _keras.velocities(model.optimizer))
        self._mover(rate, ratio)

    def _read(self) -> float:
        return _keras.read_number(self._variable)

    def _write(self, rate: float) -> None:
        _keras.write_number(self._variable, rate)
