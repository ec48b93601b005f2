"""What replicas may decide within a step."""

from __future__ import annotations

from typing import Any

from tfdist import _keras


def check_decision(optimizer: Any) -> None:
    """Refuses a decision that is one replica's.

    Args:
        optimizer: The optimizer that calls replicas from within a step; anything else is let through.

    Raises:
        ValueError: With the line to write instead.
    """
    if _keras.is_keras_loss_scale(optimizer) and _keras.KERAS_3:
        inner = type(optimizer.inner_optimizer).__name__
        raise ValueError(
            "Keras's LossScaleOptimizer asks the first replica only whether gradients are finite, so that an infinity on another "
            f"one reaches the weights. Use tfdist.mixed_precision.LossScaleOptimizer({inner}(...)). Received: keras.optimizers."
            "LossScaleOptimizer."
        )
