"""Clipping that sees the whole gradient."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras


@keras.saving.register_keras_serializable(package="tfdist")
class GlobalClip(_keras.Wrapper):
    """Clips the sum over all replicas, and leaves the rest to another optimizer.

    ```
    G = sum over replicas of g
    clipnorm c:           each variable's G  *=  min(1, c / |G|)
    global_clipnorm c:    all                *=  min(1, c / |all G together|)
    ```

    Keras 3 clips the gradient of each replica before the sum, which is another step than that of one device: of +10 and -9 with the
    norm 1 it makes +1 and -1, and their sum is 0, not 1.

    Args:
        optimizer: Any Keras optimizer that does not clip itself.
        clipnorm: The largest norm of one variable's gradient, above 0.
        global_clipnorm: The largest norm of all of them together, above 0. One of the two must be given.
        name: The optimizer's name. Defaults to `"GlobalClip"`.

    Raises:
        ValueError: If not exactly one norm is given, it is not above 0, or the optimizer clips, accumulates, sends less than the
            whole gradient, or scales the loss.

    Example:
        >>> w = tf.Variable([0.0, 0.0])
        >>> clipped = GlobalClip(keras.optimizers.SGD(1.0), global_clipnorm=2.5)
        >>> _ = clipped.apply_gradients([(tf.constant([3.0, 4.0]), w)])
        >>> w.numpy().tolist()
        [-1.5, -2.0]

    Reference:
        Pascanu, Mikolov and Bengio 2013, arXiv 1211.5063, algorithm 1.
    """

    def __init__(
        self, optimizer: Any, *, clipnorm: float | None = None, global_clipnorm: float | None = None, name: str = "GlobalClip"
    ) -> None:
        given = {name: norm for name, norm in (("clipnorm", clipnorm), ("global_clipnorm", global_clipnorm)) if norm is not None}
        if len(given) != 1:
            raise ValueError(
                "Give `clipnorm` or `global_clipnorm`, and only one of them. Received: "
                f"clipnorm={clipnorm}, global_clipnorm={global_clipnorm}."
            )
        for argument, norm in given.items():
            _keras.check_number(argument, norm, lambda n: n > 0, "a number above 0")
        _check_inner(optimizer)
        super().__init__(optimizer, name)
        self._norms = (clipnorm, global_clipnorm)
        self.needs_all_gradients = global_clipnorm is not None

    def apply_sums(self, sums: list[Any], variables: list[Any]) -> None:
        clipnorm, global_clipnorm = self._norms
        if clipnorm is not None:
            clipped = [tf.clip_by_norm(total, clipnorm) for total in sums]
        else:
            clipped, _ = tf.clip_by_global_norm(sums, global_clipnorm)
        _keras.apply_sums(self.inner_optimizer, clipped, variables)

    def get_config(self) -> dict[str, Any]:
        clipnorm, global_clipnorm = self._norms
        return {**super().get_config(), "clipnorm": clipnorm, "global_clipnorm": global_clipnorm}


def _check_inner(optimizer: Any) -> None:
    reasons = {
        "it clips already": _keras.clips(optimizer),
        "accumulation goes around: GradientAccumulation(GlobalClip(optimizer, ...), steps)": _keras.accumulates(optimizer),
        "it sums itself, and has a `clipnorm` of its own": _keras.wants_local(optimizer),
        "loss scaling goes around: LossScaleOptimizer(GlobalClip(optimizer, ...))": _keras.scales_loss(optimizer),
    }
    _keras.check_optimizer(optimizer, "GlobalClip", reasons)
