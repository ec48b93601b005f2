"""Eight bits an element."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfdist.compression.base import Compressor

_LARGEST = 126
_INF, _NAN = 127, -128


class Int8Compressor(Compressor):
    """Sends each element as one of 253 equal steps between the row's extremes; the rest is kept for the next time.

    ```
    scale = max |x| / 126         over the finite elements of a row, which is one rank's part of a bucket
    wire  = scale (4 bytes), round(x / scale) (1 byte each); 127, -127 and -128 stand for inf, -inf and NaN
    y     = scale * wire
    e     = x - y                 kept, and added to x in the next step: what is sent over time is what was to be sent
    ```

    Example:
        >>> compressor = Int8Compressor()
        >>> compressor.decode(compressor.encode(tf.constant([[126.0, -3.0, float("inf"), 0.2]])), 4).numpy().tolist()
        [[126.0, -3.0, inf, 0.0]]

    Reference:
        Seide et al. 2014, "1-bit stochastic gradient descent", section 3, for the error that is kept. Here eight bits with a scale
        for each bucket and rank.
    """

    name = "int8"
    wire_bits = 8
    keeps_error = True

    def encode(self, x: Any) -> Any:
        finite = tf.math.is_finite(x)
        largest = tf.reduce_max(tf.where(finite, tf.abs(x), 0.0), axis=1, keepdims=True)
        scale = largest / _LARGEST
        steps = tf.round(tf.math.divide_no_nan(tf.where(finite, x, 0.0), scale))
        steps = tf.clip_by_value(steps, -_LARGEST, _LARGEST)
        special = tf.where(tf.math.is_nan(x), float(_NAN), _INF * tf.sign(x))
        codes = tf.bitcast(tf.cast(tf.where(finite, steps, special), tf.int8), tf.uint8)
        return tf.concat([tf.bitcast(tf.reshape(scale, [-1]), tf.uint8), codes], axis=1)

    def decode(self, wire: Any, length: int) -> Any:
        scale = tf.bitcast(wire[:, :4], tf.float32)[:, None]
        codes = tf.cast(tf.bitcast(wire[:, 4:], tf.int8), tf.float32)
        y = codes * scale
        y = tf.where(tf.abs(codes) == _INF, math.inf * codes, y)
        return tf.reshape(tf.where(codes == _NAN, math.nan, y), [-1, length])
