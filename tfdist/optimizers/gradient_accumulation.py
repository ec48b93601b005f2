"""Several batches for one step."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras


@keras.saving.register_keras_serializable(package="tfdist")
class GradientAccumulation(_keras.Wrapper):
    """Adds up the gradients of several batches, and lets another optimizer take one step with their mean.

    ```
    each batch:            a = a + g           in each replica, nothing is sent
    each n-th batch:       step with a / n     summed over the replicas by the other optimizer
                           a = 0
    ```

    Batches that are left over at the end of an epoch count for the next one; a short batch counts as one. What is not finite stays
    no longer than its n batches: around a `LossScaleOptimizer` it is not added at all. A checkpoint between two steps holds what
    the rank that writes it has added on its first device.

    Args:
        optimizer: Any Keras optimizer. It counts steps, not batches, and so does its learning rate's schedule.
        steps: n, the batches of a step, 1 or more.
        name: The optimizer's name. Defaults to `"GradientAccumulation"`.

    Attributes:
        steps: A variable: `optimizer.steps.assign(8)` between two epochs makes the global batch larger, without a new trace;
            `tfdist.callbacks.BatchSizeRamp` does so.
        first_steps: What `steps` was at the start.

    Raises:
        ValueError: If `steps` is no whole number above 0, or the optimizer accumulates already, or scales the loss.

    Example:
        >>> w = tf.Variable(0.0)
        >>> optimizer = GradientAccumulation(keras.optimizers.SGD(1.0), steps=2)
        >>> for gradient in (1.0, 3.0, 8.0):
        ...     _ = optimizer.apply_gradients([(tf.constant(gradient), w)])
        >>> float(w.numpy())
        -2.0
    """

    wants_local = True
    accumulates = True

    def __init__(self, optimizer: Any, steps: int, name: str = "GradientAccumulation") -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"`steps` must be a whole number of batches, 1 or more. Received: steps={steps!r}.")
        _keras.check_optimizer(optimizer, "GradientAccumulation")
        if _keras.accumulates(optimizer) or _keras.scales_loss(optimizer):
            raise ValueError(
                "`GradientAccumulation` cannot go around an optimizer that accumulates, or that scales the loss: write "
                f"LossScaleOptimizer(GradientAccumulation(optimizer, steps)). Received: {type(optimizer).__name__}."
            )
        super().__init__(optimizer, name)
        self.first_steps = steps
        self.steps = self.add_number(steps, "steps")
        self._batch = self.add_number(0, "batch")

    def create_variables(self, variables: list[Any]) -> None:
        self.add_slots(variables, "accumulated")

    def apply_local(self, gradients: list[Any], variables: list[Any]) -> None:
        _keras.accumulate(
            gradients,
            [self.slot("accumulated", variable) for variable in variables],
            self._next_batch,
            lambda means: _keras.apply_local(self.inner_optimizer, means, variables),
        )

    def _next_batch(self) -> tuple[Any, Any]:
        batch = tf.identity(self._batch) + 1
        is_last = batch >= tf.identity(self.steps)
        self._batch.assign(tf.where(is_last, tf.zeros_like(batch), batch))
        return is_last, batch

    def batches_of_update(self) -> tuple[int, int]:
        """How many batches' gradients wait for a step, and how many a step takes."""
        return int(_keras.read_number(self._batch)), int(_keras.read_number(self.steps))

    def apply_sums(self, sums: list[Any], variables: list[Any]) -> None:
        raise ValueError("Gradients are accumulated in each replica, before they are summed.")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "steps": int(self.steps.numpy())}
