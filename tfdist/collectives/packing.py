"""Buckets as one array, and back."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.bucket_sum import on_gpus
from tfdist.collectives.bucket_sum import sum_copies
from tfdist.collectives.buffer_pool import aligned_offsets
from tfdist.collectives.buffer_pool import BufferPool


class Packer:
    """Adds the devices' copies of a bucket into one buffer.

    ```
    copies  --add-->  buffer of the pool, one value after the other  ...  views, which TensorFlow takes as they are
    ```

    On the host this costs less than to add each value alone: the buffer is warm, and what is in it is not copied again.

    Args:
        multiple: The length of a buffer is a multiple of this. Defaults to 1.
    """

    def __init__(self, multiple: int = 1) -> None:
        self._multiple = multiple
        self._pool = BufferPool()
        with tf.device("CPU:0"):
            self._no_constant = tf.Variable(0, trainable=False, name="tfdist_no_constant")

    def pack(self, values: list[list[Any]]) -> Any:
        """Adds the copies of all values into one tensor of one dimension, which may be written to."""
        packed = self.pack_then(lambda array: array, values, values[0][0].dtype)
        lengths = [copies[0].shape.num_elements() for copies in values]
        packed.set_shape([None if None in lengths else self._offsets(lengths, packed.dtype.size)[-1]])
        return packed

    def pack_then(self, function: Callable[[np.ndarray], Any], values: list[list[Any]], dtype: tf.DType) -> Any:
        """Packs, and calls a function with the array; returns a tensor of what that returns."""
        if on_gpus(values):
            # A GPU adds its copies faster than the host gets them.
            values = [[total] for total in sum_copies(values)]
        inputs = [self._no_constant.read_value(), *itertools.chain(*values)]
        pack = functools.partial(self._pack, function, len(values[0]))
        # Not stateful, since TensorFlow would let it wait for the messages before it; but no constant, since it is written to.
        return tf.numpy_function(pack, inputs, dtype, stateful=False, name="tfdist_pack")

    def _pack(self, function: Callable[[np.ndarray], Any], count: int, no_constant: np.ndarray, *arrays: np.ndarray) -> Any:
        del no_constant
        firsts = arrays[::count]
        offsets = self._offsets([array.size for array in firsts], firsts[0].itemsize)
        packed = self._pool.take(offsets[-1], firsts[0].dtype)
        for index, (first, start, end) in enumerate(zip(firsts, offsets, offsets[1:], strict=False)):
            view = packed[start : start + first.size].reshape(first.shape)
            _add_up(arrays[index * count : (index + 1) * count], view)
            packed[start + first.size : end] = 0
        return function(packed)

    def _offsets(self, lengths: list[int], itemsize: int) -> list[int]:
        *starts, end = aligned_offsets(lengths, itemsize)
        return [*starts, -(-end // self._multiple) * self._multiple]


def unpack(total: Any, like: list[Any]) -> list[Any]:
    """Views of the packed sums, in the shapes of some tensors."""
    shapes = [tuple(tensor.shape) if tensor.shape.is_fully_defined() else None for tensor in like]
    unknown = [tf.shape(tensor) for tensor, shape in zip(like, shapes, strict=True) if shape is None]

    def views_of(array: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        rest = iter(others)
        whole = [tuple(next(rest)) if shape is None else shape for shape in shapes]
        offsets = aligned_offsets([math.prod(shape) for shape in whole], array.itemsize)
        return [array[start : start + math.prod(shape)].reshape(shape) for start, shape in zip(offsets, whole, strict=False)]

    dtypes = [total.dtype] * len(like)
    views = tf.nest.flatten(tf.numpy_function(views_of, [total, *unknown], dtypes, stateful=False, name="tfdist_unpack"))
    for view, tensor in zip(views, like, strict=True):
        view.set_shape(tensor.shape)
    return views


def _add_up(copies: Sequence[np.ndarray], out: np.ndarray) -> None:
    if len(copies) == 1:
        out[...] = copies[0]
        return
    # Infinities and NaNs are the user's to see in the sum.
    with np.errstate(all="ignore"):
        np.add(copies[0], copies[1], out=out)
        for copy in copies[2:]:
            np.add(out, copy, out=out)
