"""Where the time of a step goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf


class StepClock:
    """Adds up what steps spend on other ranks, while an `Executor` has it.

    ```
    wait    in the meetings, until all ranks are there
    wire    from the moment all values of a sum exist, to the moment the sum does: what computing did not hide
    ```
    """

    def __init__(self) -> None:
        self._waited_s = 0.0
        with tf.init_scope(), tf.device("CPU:0"):
            self._wire_s, self._idle_since_s, self._handed_bytes = (
                tf.Variable(0, trainable=False, dtype=dtype) for dtype in (tf.float64, tf.float64, tf.int64)
            )

    def read(self) -> tuple[float, float, int]:
        """Seconds of waiting, seconds of the wire, and bytes handed to the engine, since the start."""
        return self._waited_s, float(self._wire_s.numpy()), int(self._handed_bytes.numpy())

    def waiting(self, meet: Callable[[], Any]) -> Any:
        """Counts a meeting."""
        start_s = time.perf_counter()
        try:
            return meet()
        finally:
            self._waited_s += time.perf_counter() - start_s

    def sending(self, values: Sequence[Any], send: Callable[[], Any]) -> Any:
        """Counts what `send` does with values, in a graph.

        Args:
            values: What is handed over; the engine may send less, if it is compressed, or more, in several rounds.
            send: Builds the operations; returns tensors.
        """
        with tf.device("CPU:0"), tf.control_dependencies(list(values)):
            start_s = tf.timestamp()
        results = send()
        with tf.device("CPU:0"), tf.control_dependencies(tf.nest.flatten(results)):
            # Sums overlap: the time of the wire is counted once.
            end_s = tf.timestamp()
            spent_s = end_s - tf.maximum(start_s, self._idle_since_s.read_value())
            self._wire_s.assign_add(tf.maximum(spent_s, tf.zeros_like(spent_s)))
            self._idle_since_s.assign(end_s)
            sizes = [tf.size(value, tf.int64) * np.int64(value.dtype.size) for value in values]
            self._handed_bytes.assign_add(tf.add_n(sizes))
        return results
