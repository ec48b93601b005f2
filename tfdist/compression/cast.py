"""Casts to a shorter floating-point number, and the identity."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdist.compression.base import Compressor


class CastCompressor(Compressor):
    """Sends float32 as another floating-point dtype; sums are made in float32.

    ```
    g_r / p  --cast-->  wire  --cast-->  sum over ranks in float32  --cast-->  wire  --cast-->  * p
    ```

    With "fp16", a magnitude above 65504 times the ranks becomes infinite, and one below 6e-8 times the ranks zero: scale the loss.
    "bf16" has the range of float32 and 8 bits of precision. NaN and infinity are kept. "none" is the identity.

    Args:
        name: The compressor's name.
        dtype: The wire's dtype.

    Example:
        >>> compressor = CastCompressor("bf16", tf.bfloat16)
        >>> compressor.decode(compressor.encode(tf.constant([[1.0, 3.14159]])), 2).numpy().tolist()
        [[1.0, 3.140625]]

    Reference:
        Goyal et al. 2017, arXiv 1706.02677, and Jia et al. 2018, arXiv 1807.11205, sum halves on the wire; here they are summed in
        float32, since Gloo adds halves in software and since rounding once is more exact than in every round.
    """

    def __init__(self, name: str, dtype: tf.DType) -> None:
        self.name = name
        self._dtype = dtype
        self.wire_bits = 8 * dtype.size
        self.divide_first = dtype != tf.float32

    def encode(self, x: Any) -> Any:
        wire = tf.bitcast(tf.cast(x, self._dtype), tf.uint8)
        return tf.reshape(wire, [tf.shape(x)[0], -1])

    def decode(self, wire: Any, length: int) -> Any:
        elements = tf.reshape(wire, [-1, length, self._dtype.size])
        return tf.cast(tf.bitcast(elements, self._dtype), tf.float32)
