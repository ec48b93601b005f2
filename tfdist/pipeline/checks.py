"""What cannot be in a pipeline."""

from __future__ import annotations

from typing import Any

from tfdist import _keras


def check_strategy(strategy: Any) -> None:
    """Refuses a strategy in which a process holds several replicas.

    Raises:
        ValueError: If there are several.
    """
    replicas = strategy.num_replicas_in_sync // getattr(strategy, "size", 1)
    if replicas > 1:
        raise ValueError(
            "Under a strategy each process is one pipeline, whose stages are the process's devices: use "
            f"tfdist.HierarchicalStrategy(pipelined=True). Received: {type(strategy).__name__} with {replicas} replicas a process."
        )


def check_model(model: Any) -> None:
    """Refuses a model that trains itself in its own way.

    Raises:
        ValueError: If its class overrides what a pipeline does in its place.
    """
    if _keras.has_own_train_step(model):
        raise ValueError(
            "A pipeline runs forward and backward passes itself, so a model's own train_step or compute_loss would not be used. "
            f"Received: {type(model).__name__} {model.name!r}, which has one."
        )


def check_optimizer(optimizer: Any, schedule: str) -> None:
    """Refuses an optimizer that must see the gradients of all stages at once, where each stage updates on its own.

    Raises:
        ValueError: With what needs them.
    """
    if schedule == "gpipe":
        return
    inner = _keras.innermost(optimizer)
    reasons = {
        "global_clipnorm": getattr(inner, "global_clipnorm", None) or _keras.needs_all_gradients(optimizer),
        "gradient accumulation": _keras.accumulates(optimizer),
        "use_ema": getattr(inner, "use_ema", False),
    }
    for name, holds in reasons.items():
        if holds:
            raise ValueError(
                f"{name} needs the gradients of all stages at once, but stages update one after the other. Use "
                f'schedule="gpipe", or leave it out. Received: {name} with schedule={schedule!r}.'
            )
