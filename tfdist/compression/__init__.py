"""How gradients are made smaller on the wire: one file a kind."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfdist.compression.base import Compressor as Compressor
from tfdist.compression.cast import CastCompressor
from tfdist.compression.int8 import Int8Compressor

COMPRESSORS: dict[str, Callable[[], Compressor]] = {
    "none": lambda: CastCompressor("none", tf.float32),
    "fp16": lambda: CastCompressor("fp16", tf.float16),
    "bf16": lambda: CastCompressor("bf16", tf.bfloat16),
    "int8": Int8Compressor,
}
