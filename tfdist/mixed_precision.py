"""Half precision: the policy, and a loss scale on which all replicas agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras

_POLICIES = ("float32", "mixed_float16", "mixed_bfloat16")


def set_global_policy(policy: str) -> None:
    """Lets layers that are made from now on compute in half precision, and keep their weights in float32.

    With "mixed_float16", `compile` puts a `LossScaleOptimizer` around the optimizer. "mixed_bfloat16" has the range of float32 and
    needs none.

    Args:
        policy: "mixed_float16", "mixed_bfloat16" or "float32".

    Raises:
        ValueError: If the policy is not known.

    Example:
        >>> set_global_policy("mixed_bfloat16")
        >>> keras.layers.Dense(1).compute_dtype
        'bfloat16'
        >>> set_global_policy("float32")
    """
    if policy not in _POLICIES:
        raise ValueError(f"`policy` must be one of {list(_POLICIES)}. Received: policy={policy!r}.")
    keras.mixed_precision.set_global_policy(policy)


@keras.saving.register_keras_serializable(package="tfdist")
class LossScaleOptimizer(_keras.BaseLossScaleOptimizer):
    """Multiplies the loss, so that small gradients are not lost in half precision, and divides the gradients.

    ```
    G = sum over replicas of the gradient of (S * loss)
    every element of G is finite:     the optimizer's step with G / S;     after `dynamic_growth_steps` of these, S = 2 * S
    else:                             no step;                             S = max(S / 2, min_scale)
    ```

    The decision is one for all replicas of all ranks. Keras 3 asks the first replica what it computed itself: an infinity on
    another one reaches the weights. Around an optimizer that does not sum each batch (`DGC`, accumulation), the replicas tell each
    other whether what they have is finite, and in a skipped step nothing of it is kept.

    Args:
        inner_optimizer: Any Keras optimizer.
        initial_scale: S at the start, above 0. Defaults to 2^15.
        dynamic_growth_steps: The steps after which S is doubled. Defaults to 2000.
        min_scale: S does not fall below. Defaults to 1.
        max_skipped_steps: After so many skipped steps in a row, `fit` ends with an error on every rank. Defaults to 50.
        name: The optimizer's name.

    Raises:
        ValueError: If a number is outside its range, or the optimizer scales the loss already.
        tf.errors.InvalidArgumentError: In `fit`, after `max_skipped_steps`.

    Example:
        >>> optimizer = LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=4.0)
        >>> optimizer.scale
        4.0

    Reference:
        Micikevicius et al. 2017, arXiv 1710.03740, section 3.2.
    """

    def __init__(
        self,
        inner_optimizer: Any,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        *,
        min_scale: float = 1.0,
        max_skipped_steps: int = 50,
        name: str | None = None,
    ) -> None:
        _keras.check_number("initial_scale", initial_scale, lambda s: s > 0, "a number above 0")
        _keras.check_number("dynamic_growth_steps", dynamic_growth_steps, lambda n: n >= 1, "a whole number of 1 or more")
        _keras.check_number("min_scale", min_scale, lambda s: s > 0, "a number above 0")
        _keras.check_number("max_skipped_steps", max_skipped_steps, lambda n: n >= 1, "a whole number of 1 or more")
        if _keras.scales_loss(inner_optimizer):
            raise ValueError(
                "The loss is scaled once, by the outermost optimizer: Keras's own LossScaleOptimizer, or loss_scale_factor, would "
                f"scale it again. Received: inner_optimizer={type(inner_optimizer).__name__}."
            )
        settings = {"initial_scale": initial_scale, "dynamic_growth_steps": dynamic_growth_steps}
        super().__init__(inner_optimizer, **settings, **({"name": name} if _keras.KERAS_3 else {}))
        self._set_limits(min_scale, max_skipped_steps)

    @classmethod
    def take_over(cls, optimizer: Any) -> None:
        """Makes Keras's own optimizer for loss scaling one of this class, with its present scale."""
        optimizer.__class__ = cls
        optimizer._set_limits(1.0, 50)

    @property
    def scale(self) -> float:
        """The present loss scale."""
        is_made = not _keras.KERAS_3 or self.built
        return float(self.scale_variable.numpy() if is_made else self.initial_scale)

    def scaled_step(self, gradients: list[Any], variables: list[Any], *, summed: bool) -> None:
        local = _keras.wants_local(self.inner_optimizer) and not summed
        values = gradients if local or summed else _keras.sum_gradients(gradients)
        flag = _keras.sum_gradients([1.0 - _finite(gradients)])[0] if local else tf.zeros([])

        def decide(distribution: Any, values: list[Any], flag: Any) -> None:
            first = [distribution.experimental_local_results(value)[0] for value in values]
            total = distribution.experimental_local_results(flag)[0]
            good = total < 0.5 if local else _finite(first) > 0.5
            tf.cond(good, lambda: self._go_on(distribution, values, variables, local), self._skip)

        tf.distribute.get_replica_context().merge_call(decide, args=(values, flag))

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        config.pop("dynamic", None)
        return {**config, "min_scale": self._min_scale, "max_skipped_steps": self._max_skipped_steps}

    def _set_limits(self, min_scale: float, max_skipped_steps: int) -> None:
        self._min_scale, self._max_skipped_steps = min_scale, max_skipped_steps
        with tf.init_scope():
            skipped = tf.Variable(0, dtype=tf.int64, trainable=False, name="skipped_steps")
        # It is not saved, so that files are those of Keras's class; a function hides it from what tracks variables.
        self._skipped: Callable[[], Any] = lambda: skipped

    def _go_on(self, distribution: Any, values: list[Any], variables: list[Any], local: bool) -> Any:
        apply = _keras.apply_local if local else _keras.apply_sums

        def step(values: list[Any]) -> None:
            apply(self.inner_optimizer, [self.unscale(value) for value in values], variables)

        distribution.extended.call_for_each_replica(step, args=(values,))
        scale, count = self.scale_variable, self.good_steps
        steps = count.read_value() + 1
        grows = steps >= tf.cast(self.dynamic_growth_steps, steps.dtype)
        doubled = 2.0 * scale.read_value()
        scale.assign(tf.where(grows & tf.math.is_finite(doubled), doubled, scale.read_value()))
        count.assign(tf.where(grows, tf.zeros_like(steps), steps))
        self._skipped().assign(tf.zeros([], tf.int64))
        return tf.zeros([])

    def _skip(self) -> Any:
        skipped = self._skipped().read_value() + 1
        self._skipped().assign(skipped)
        self.scale_variable.assign(tf.maximum(0.5 * self.scale_variable.read_value(), self._min_scale))
        self.good_steps.assign(tf.zeros_like(self.good_steps.read_value()))
        tf.debugging.assert_less(
            skipped,
            tf.constant(self._max_skipped_steps, tf.int64),
            f"{self._max_skipped_steps} steps in a row were skipped: the gradient was not finite, whatever the loss scale. Look "
            "for NaN and infinity in the data of all ranks, and in the loss; then try a lower learning rate. "
            f"(LossScaleOptimizer, max_skipped_steps={self._max_skipped_steps})",
        )
        return tf.zeros([])


def _finite(gradients: list[Any]) -> Any:
    """1.0 if every element is finite, else 0.0."""
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    each = [tf.reduce_all(tf.math.is_finite(value)) for value in values]
    return tf.cast(tf.reduce_all(tf.stack(each)), tf.float32)
