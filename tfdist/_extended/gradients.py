"""What is done to a single gradient, dense or slices."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist._extended.batch_part import BatchPart


def zero_without_rows(gradient: Any, part: BatchPart) -> Any:
    """A replica without rows has the gradient 0, or NaN where a layer took the mean of its rows."""
    if isinstance(gradient, tf.IndexedSlices) or not gradient.dtype.is_floating:
        return gradient
    # A condition, not a product: gradients are large, and replicas without rows rare.
    return tf.cond(part.share > 0, lambda: tf.identity(gradient), lambda: tf.zeros_like(gradient))


def scale(value: Any, factor: float) -> Any:
    """Multiplies a tensor, or slices, in its own dtype."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(value.values * tf.cast(factor, value.dtype), value.indices, value.dense_shape)
    if not value.dtype.is_floating:
        return tf.cast(tf.cast(value, tf.float64) * factor, value.dtype)
    return value * tf.cast(factor, value.dtype)


def merge_duplicates(value: Any) -> Any:
    """Sums the slices of each row, so that a row occurs once: Keras 3's Adam would square and add them one by one."""
    if not isinstance(value, tf.IndexedSlices):
        return value
    indices, positions = tf.unique(value.indices)
    rows = tf.math.unsorted_segment_sum(value.values, positions, tf.size(indices))
    return tf.IndexedSlices(rows, indices, value.dense_shape)
