"""The gradients of small and large batches of one step, compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist._extended.batch_part import BatchPart
from tfdist._extended.gradients import merge_duplicates
from tfdist._extended.host_variable import host_variable


class NoiseScaleMeter:
    """Measures how much the gradients of the replicas differ, while they are summed.

    ```
    g_r: the mean gradient of replica r, which has b_r of the B rows       R: the replicas that have rows
    small = sum of b_r / B * |g_r|^2        big = |sum of b_r / B * g_r|^2
    S = B * (small - big) / (R - 1)         G = (R * big - small) / (R - 1)
    ```

    Since the mean of |g_r|^2 is |G|^2 + S / b_r, both are unbiased. Their moving averages are `noise` and `signal`; a step whose
    gradient is not finite, or in which one replica has all rows, is left out.

    Args:
        elements: How many elements the gradients have; sums of less than half as many are of statistics, not of gradients.
        smoothing: What stays of the averages in each update.
    """

    def __init__(self, elements: int, smoothing: float) -> None:
        self._elements, self._smoothing = elements, smoothing
        self.noise, self.signal = (host_variable(0.0, tf.float32) for _ in range(2))
        self.updates = host_variable(0, tf.int64)
        # How many batches' gradients were added up before they are summed.
        self.batches = host_variable(1.0, tf.float32)

    def is_for(self, values: Sequence[Sequence[Any]]) -> bool:
        """Whether these are gradients."""
        return 2 * sum(int(copies[0].shape.num_elements() or 0) for copies in values) >= self._elements

    def measure(self, values: Sequence[Sequence[Any]], parts: list[BatchPart] | None, replicas: int) -> list[Any]:
        """For each device, what must be summed over all of them: its part of `small`, and whether it has rows."""
        shares = [part.share for part in parts] if parts else [tf.constant(1.0 / replicas)] * len(values[0])
        measured = []
        for device, share in enumerate(shares):
            squared = _squared_norm([copies[device] for copies in values])
            measured.append(tf.stack([tf.math.divide_no_nan(squared, share), tf.cast(share > 0, tf.float32)]))
        return measured

    def learn(self, totals: Sequence[Any], measured: Any, rows: Any) -> None:
        """Moves the averages on.

        Args:
            totals: The sums of the gradients.
            measured: The sum of what `measure` returned.
            rows: The rows of all replicas.
        """
        small, replicas = measured[0], measured[1]
        big = _squared_norm(totals)
        rows = tf.cast(rows, tf.float32) * self.batches.read_value()
        noise = rows * tf.math.divide_no_nan(small - big, replicas - 1)
        signal = tf.math.divide_no_nan(replicas * big - small, replicas - 1)
        counts = tf.math.is_finite(small) & tf.math.is_finite(big) & (replicas > 1)
        for average, value in ((self.noise, noise), (self.signal, signal)):
            old = average.read_value()
            average.assign(tf.where(counts, self._smoothing * old + (1 - self._smoothing) * value, old))
        self.updates.assign_add(tf.cast(counts, tf.int64))


def _squared_norm(tensors: Sequence[Any]) -> Any:
    dense = [merge_duplicates(t).values if isinstance(t, tf.IndexedSlices) else t for t in tensors]
    return tf.add_n([tf.reduce_sum(tf.square(tf.cast(t, tf.float32))) for t in dense])
