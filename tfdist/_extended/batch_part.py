"""What part of a batch a replica has."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class BatchPart(float):
    """The number of replicas, as one replica must use it in a step whose batch may not be divided evenly.

    Keras, and users who follow TensorFlow's guide, divide a replica's mean loss by the number of replicas R, since gradients are
    summed. That weights each row the same only if every replica has as many rows as any other. A replica with n of the batch's N
    rows must divide by N/n instead: then the sum over replicas is the mean over the batch, and regularisation counts once.

    It prints and compares as R; where it divides or meets a tensor, it is N/n.
    """

    share: Any
    count: Any

    @classmethod
    def make(cls, replicas: int, rows: Any, total_rows: Any) -> BatchPart:
        part = cls(replicas)
        rows, total_rows = tf.cast(rows, tf.float32), tf.cast(total_rows, tf.float32)
        part.share = tf.math.divide_no_nan(rows, total_rows)
        part.count = tf.math.divide_no_nan(total_rows, rows)
        return part

    def __rtruediv__(self, other: Any) -> Any:
        return other * tf.cast(self.share, other.dtype) if tf.is_tensor(other) else BatchShare.make(other * self.share)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        del name
        dtype = tf.as_dtype(dtype or tf.float32)
        return tf.cast(self.count, dtype) if dtype.is_floating else tf.constant(int(self), dtype)


class BatchShare(float):
    """A number divided by a `BatchPart`: a tensor, but of the dtype of whatever it meets, as a Python number is.

    Keras 2 multiplies losses by `1.0 / num_replicas`, also those in half precision.
    """

    value: Any

    @classmethod
    def make(cls, value: Any) -> BatchShare:
        share = cls("nan")  # what does not ask for the tensor should not go on unnoticed
        share.value = value
        return share

    def __mul__(self, other: Any) -> Any:
        return self.value * other if isinstance(other, int | float) else other * tf.cast(self.value, other.dtype)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return self.value + other

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self.value - other

    def __rsub__(self, other: Any) -> Any:
        return other - self.value

    def __truediv__(self, other: Any) -> Any:
        return self.value / other

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        del name
        return tf.cast(self.value, dtype or self.value.dtype)
