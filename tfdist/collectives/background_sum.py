"""Buckets that a thread of their own sends."""

from __future__ import annotations

import concurrent.futures
import itertools
import queue
import threading
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
        self._numbers = itertools.count()
        self._started: dict[int, concurrent.futures.Future[np.ndarray]] = {}
        self._queue: queue.SimpleQueue[tuple[np.ndarray, concurrent.futures.Future[np.ndarray]]] = queue.SimpleQueue()
        # A daemon, unlike those of an executor: a rank that fails must not wait at its exit for one that never comes.
        threading.Thread(target=self._work, daemon=True, name="tfdist-send").start()

    def steps(self, values: list[list[Any]], kept: Kept | None = None) -> Steps:
        del kept
        number = self._packer.pack_then(self._start, values, tf.int64)
        dtype = values[0][0].dtype
        total: Any = yield Message(lambda name: tf.numpy_function(self._wait, [number], dtype, name=name), number, begun=True)
        total.set_shape([None])
        return unpack(total, [copies[0] for copies in values])

    def _start(self, packed: np.ndarray) -> np.int64:
        number, future = next(self._numbers), concurrent.futures.Future[np.ndarray]()
        self._started[number] = future
        self._queue.put((packed, future))
        return np.int64(number)

    def _wait(self, number: np.ndarray) -> np.ndarray:
        return self._started.pop(int(number)).result()

    def _work(self) -> None:
        while True:
            packed, future = self._queue.get()
            try:
                future.set_result(self._sum_array(packed))
            except Exception as error:
                future.set_exception(error)
            # A buffer is free when nobody refers to it, and the next one may be long in coming.
            del packed, future
