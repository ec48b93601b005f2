"""Where in training a step is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdist import _keras


def place(epoch: int, batch: int, params: Mapping[str, Any], optimizer: Any) -> float:
    """Where the next update is, in epochs: at the first of the batches whose gradients it adds up.

    Args:
        epoch: The epoch, from 0.
        batch: The batch in the epoch, from 0.
        params: What Keras gives to callbacks.
        optimizer: The model's.

    Raises:
        ValueError: If the steps of an epoch are not known.
    """
    steps = params.get("steps")
    if not steps:
        raise ValueError(
            "What changes within an epoch needs the number of its steps, which this dataset does not tell. Give "
            f"fit(steps_per_epoch=...). Received: steps={steps}."
        )
    waiting, _ = _keras.batches_of_update(optimizer)
    return max(0.0, epoch + (batch - waiting) / steps)
