"""Buckets that a thread of their own sends."""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.collectives.bucket_sum import BucketSum
from tfdist.collectives.bucket_sum import Kept
from tfdist.collectives.bucket_sum import Message
from tfdist.collectives.bucket_sum import Steps
from tfdist.collectives.packing import Packer
from tfdist.collectives.packing import unpack


class BackgroundSum(BucketSum):
    """Sums packed buckets one after the other in one thread, beside the backward pass.

    ```
    TensorFlow       pack 0    pack 1    pack 2      ...       wait 0    wait 1    wait 2
    this thread             sum 0 .......... sum 1 .......... sum 2 ..........
    ```

    TensorFlow has as many threads as cores, and all may be busy with long operations when a bucket is ready; this thread waits for
    none of them, nor between two buckets. TensorFlow's threads do not wait for it before all buckets are packed. The order of sums
    is that of the buckets, which the executor lets be packed in one order on all ranks.

    Args:
        sum_array: Sums an array of one dimension over ranks, in place, and returns it.
    """

    def __init__(self, sum_array: Callable[[np.ndarray], np.ndarray]) -> None:
        self._sum_array = sum_array
        self._packer = Packer()
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1, thread_name_prefix="tfdist-send")
        self._numbers = itertools.count()
        self._started: dict[int, concurrent.futures.Future[np.ndarray]] = {}

    def steps(self, values: list[list[Any]], kept: Kept | None = None) -> Steps:
        del kept
        number = self._packer.pack_then(self._start, values, tf.int64)
        dtype = values[0][0].dtype
        total: Any = yield Message(lambda name: tf.numpy_function(self._wait, [number], dtype, name=name), number, begun=True)
        total.set_shape([None])
        return unpack(total, [copies[0] for copies in values])

    def _start(self, packed: np.ndarray) -> np.int64:
        number = next(self._numbers)
        self._started[number] = self._thread.submit(self._sum_array, packed)
        return np.int64(number)

    def _wait(self, number: np.ndarray) -> np.ndarray:
        return self._started.pop(int(number)).result()
