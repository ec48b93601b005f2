"""Which elements of an array are sent, and how they travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.optimizers.sparsity import sample_of

_TOLERANCE = 1.3
_STEP_BETWEEN_SAMPLES = 7919  # a prime, so that all places have their turn


def select(residual: Any, density: Any, sparsity: float, offset: Any) -> Any:
    """The indices of the elements whose magnitude is among the largest.

    ```
    threshold = that which a part `density` of a sample reaches
    indices   = where |x| reaches the threshold; if these are more than 1.3 * density * n, the density * n largest of them
    ```

    Zeros are never chosen; what is not a number always is, as far as there is room.

    Args:
        residual: float32, (n,).
        density: A scalar: the part that is wanted.
        sparsity: One minus the least density that will ever be wanted.
        offset: An integer scalar that changes from step to step, and with it the sample.

    Returns:
        int32, (k,).

    Example:
        >>> select(tf.constant([0.0, -3.0, 1.0, 2.0]), tf.constant(0.5), 0.5, tf.constant(0)).numpy().tolist()
        [1, 3]
    """
    length = int(residual.shape[0])
    magnitude = tf.abs(residual)
    threshold = tf.maximum(_threshold(magnitude, density, sparsity, offset), np.finfo(np.float32).tiny)
    # "Not less than", since that holds for NaN.
    indices = tf.cast(tf.where(tf.logical_not(magnitude < threshold))[:, 0], tf.int32)
    wanted = tf.cast(tf.math.ceil(density * length), tf.int32)

    def largest() -> Any:
        order = tf.math.top_k(tf.gather(magnitude, indices), wanted, sorted=False).indices
        return tf.gather(indices, order)

    too_many = tf.cast(tf.size(indices), tf.float32) > _TOLERANCE * tf.cast(wanted, tf.float32)
    return tf.cond(too_many, largest, lambda: indices)


def to_wire(values: Any, dtype: tf.DType) -> Any:
    """Casts; what is too large for the dtype becomes its largest number, but an infinity stays one.

    Example:
        >>> to_wire(tf.constant([1.0, 1e5, float("inf")]), tf.float16).numpy().tolist()
        [1.0, 65504.0, inf]
    """
    if dtype == values.dtype:
        return values
    return tf.cast(tf.where(tf.math.is_finite(values), tf.clip_by_value(values, dtype.min, dtype.max), values), dtype)


def remainder(values: Any, sent: Any) -> Any:
    """What is left of values when something of them was sent; of what is not finite, nothing."""
    left = values - tf.cast(sent, values.dtype)
    return tf.where(tf.math.is_finite(left), left, 0.0)


def join(chosen: list[tuple[Any, Any]], lengths: list[int]) -> Any:
    """Puts indices and values of several arrays into one message: a row of bytes for each element.

    Args:
        chosen: For each array, the indices, int32, and the values.
        lengths: The arrays' lengths, by which their indices are counted on.

    Returns:
        uint8, (k, bytes of a value + 4).

    Raises:
        ValueError: If the arrays together have more elements than int32 can count.
    """
    starts = _starts(lengths)
    values = tf.concat([values for _, values in chosen], 0)
    indices = tf.concat([indices + start for (indices, _), start in zip(chosen, starts, strict=False)], 0)
    return tf.concat([tf.bitcast(values, tf.uint8), tf.bitcast(indices, tf.uint8)], 1)


def split(message: Any, dtype: tf.DType, lengths: list[int]) -> list[tuple[Any, Any]]:
    """What `join` put into a message, or into several that follow one another.

    Args:
        message: uint8, (k, bytes of a value + 4).
        dtype: That of the values.
        lengths: The arrays' lengths.

    Returns:
        For each array, the indices, int32, and the values as float32; an index may occur more than once.
    """
    values = tf.cast(tf.bitcast(message[:, : dtype.size], dtype), tf.float32)
    indices = tf.bitcast(message[:, dtype.size :], tf.int32)
    starts = _starts(lengths)
    array = tf.searchsorted(starts, indices, side="right") - 1
    parts = zip(tf.dynamic_partition(indices, array, len(lengths)), tf.dynamic_partition(values, array, len(lengths)), strict=True)
    return [(part - start, value) for (part, value), start in zip(parts, starts, strict=False)]


def _starts(lengths: list[int]) -> np.ndarray:
    starts = np.cumsum([0, *lengths], dtype=np.int64)
    if starts[-1] > np.iinfo(np.int32).max:
        raise ValueError(f"Indices are int32, so at most 2^31 elements can be sent sparsely. Received: {starts[-1]} elements.")
    return starts[:-1].astype(np.int32)


def _threshold(magnitude: Any, density: Any, sparsity: float, offset: Any) -> Any:
    length = int(magnitude.shape[0])
    count, stride = sample_of(length, sparsity)
    reach = stride * (count - 1) + 1
    # From step to step the sample begins elsewhere, also where it is a window that does not span the array.
    start = offset * _STEP_BETWEEN_SAMPLES % (length - reach + 1)
    sample = magnitude[start : start + reach : stride]
    largest = tf.cast(tf.math.ceil(density * count), tf.int32)
    return tf.reduce_min(tf.math.top_k(sample, largest, sorted=False).values)
