"""Runs what was planned, in TensorFlow, on a communicator."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.agreement import Agreement
from tfdist.collectives.buckets import plan_buckets
from tfdist.communicators import Communicator


class Executor:
    """Sends tensors between ranks, in a `tf.function` or eagerly, one agreed order for all ranks.

    ```
    meeting -> bucket 0 -> bucket 1 -> ...       -> : in order where the engine needs it, else all after the meeting
    ```

    Nothing is sent in a graph before the ranks have met there, so that a rank that does something else, or has left, is found out
    before the others wait for it.

    Args:
        communicator: The engine.
        agreement: Where the ranks meet.
        fusion_bytes: The threshold of a bucket; see `plan_buckets`.
    """

    def __init__(self, communicator: Communicator, agreement: Agreement, fusion_bytes: int) -> None:
        self.communicator = communicator
        self._agreement = agreement
        self._fusion_bytes = fusion_bytes
        self._last: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        self._sent: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def meet(self, purpose: Callable[[], str], value: Any) -> Any:
        """Lets the ranks meet before anything else that this graph sends.

        Args:
            purpose: Says what is about to be done; called when it is about to be done.
            value: An integer scalar.

        Returns:
            The sum of the values of all ranks, int64.
        """

        def exchange(number: np.ndarray) -> np.ndarray:
            return np.array(sum(self._agreement.meet(purpose(), int(number))), np.int64)

        if tf.executing_eagerly():
            return tf.constant(exchange(np.asarray(value)))
        total = tf.numpy_function(exchange, [tf.cast(value, tf.int64)], tf.int64, name="tfdist_meet")
        total.set_shape([])
        self._last[_graph()] = total
        return total

    def all_reduce(self, tensors: list[Any]) -> list[Any]:
        """Sums each tensor over all ranks; the results have the dtypes of the arguments."""
        if self.communicator.size == 1 or not tensors:
            return list(tensors)
        carried = [tf.cast(tensor, self._carrier(tensor.dtype)) for tensor in tensors]
        results: dict[int, Any] = {}
        for bucket in plan_buckets([_size_bytes(tensor) for tensor in carried], [t.dtype.name for t in carried], self._fusion_bytes):
            summed = self._send(self.communicator.all_reduce, [carried[index] for index in bucket], "reduce")
            results.update(zip(bucket, summed, strict=True))
        return [tf.cast(results[index], tensor.dtype) for index, tensor in enumerate(tensors)]

    def all_gather(self, tensor: Any) -> Any:
        """Concatenates the tensors of all ranks along axis 0, by rank."""
        if self.communicator.size == 1:
            return tensor
        return self._send(self.communicator.all_gather, tensor, "gather")

    def _send(self, operation: Callable[[Any, str], Any], payload: Any, kind: str) -> Any:
        graph = _graph()
        if tf.executing_eagerly():
            return operation(payload, f"tfdist.{kind}.eager")
        if graph not in self._last:
            self.meet(lambda: f"{kind} tensors outside of a step", 0)
        number = self._sent[graph] = self._sent.get(graph, 0) + 1
        with tf.control_dependencies([self._last[graph]]):
            result = operation(payload, f"tfdist.{kind}.{number}")
        if self.communicator.in_order:
            self._last[graph] = tf.nest.flatten(result)[0]
        return result

    def _carrier(self, dtype: tf.DType) -> tf.DType:
        """The dtype in which the engine adds: halves as float32, so that a sum cannot overflow and no engine adds them slowly."""
        if dtype.name in self.communicator.sum_dtypes:
            return dtype
        return tf.float32 if dtype.is_floating else tf.int64


def _graph() -> Any:
    return tf.compat.v1.get_default_graph()


def _size_bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)
