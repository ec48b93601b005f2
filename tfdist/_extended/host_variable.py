"""Variables of which there is one, whatever the strategy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops


def host_variable(value: Any, dtype: tf.DType) -> Any:
    """A variable on the host that no strategy makes copies of, such as what a dataset reads."""
    with tf.init_scope(), tf.device("CPU:0"):
        return resource_variable_ops.ResourceVariable(value, dtype=dtype, trainable=False)
