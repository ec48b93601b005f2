"""Runs what was planned, in TensorFlow, on a communicator."""

from __future__ import annotations

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
    token -> meeting -> token ... -> bucket 0 -> token -> bucket 1 -> token     an engine that needs an order
    token -> meeting -> token ... -> bucket 0, bucket 1                         one that goes by names
    ```

    Nothing is sent in a graph before the ranks have met there, so that a rank that does something else, or has left, is found out
    before the others wait for it. Each `->` through the token, a variable, makes TensorFlow keep the order in which operations were
    written, also between functions, loops and conditions, which it would else run side by side.

    Args:
        communicator: The engine.
        agreement: Where the ranks meet.
        fusion_bytes: The threshold of a bucket; see `plan_buckets`.
    """

    def __init__(self, communicator: Communicator, agreement: Agreement, fusion_bytes: int) -> None:
        self.communicator = communicator
        self._agreement = agreement
        self._fusion_bytes = fusion_bytes
        with tf.device("CPU:0"):
            self._token = tf.Variable(0, dtype=tf.int64, trainable=False, name="tfdist_token")

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
        number = tf.cast(value, tf.int64)
        total = self._in_order(lambda: tf.numpy_function(exchange, [number], tf.int64, name="tfdist_meet"))
        total.set_shape([])
        _of_graph()["met"] = total
        return total

    def all_reduce(self, tensors: list[Any]) -> list[Any]:
        """Sums each tensor over all ranks; the results have the dtypes of the arguments."""
        if self.communicator.size == 1 or not tensors:
            return list(tensors)
        carried = [tf.cast(tensor, self._carrier(tensor.dtype)) for tensor in tensors]
        results: dict[int, Any] = {}
        for bucket in plan_buckets(
            [_size_bytes(tensor) for tensor in carried], [t.dtype.name for t in carried], self._fusion_bytes
        ):
            summed = self._send(self.communicator.all_reduce, [carried[index] for index in bucket], "reduce")
            results.update(zip(bucket, summed, strict=True))
        return [tf.cast(results[index], tensor.dtype) for index, tensor in enumerate(tensors)]

    def all_gather(self, tensor: Any) -> Any:
        """Concatenates the tensors of all ranks along axis 0, by rank."""
        if self.communicator.size == 1:
            return tensor
        return self._send(self.communicator.all_gather, tensor, "gather")

    def _send(self, operation: Callable[[Any, str], Any], payload: Any, kind: str) -> Any:
        if tf.executing_eagerly():
            return operation(payload, f"tfdist.{kind}.eager")
        if "met" not in _of_graph():
            self.meet(lambda: f"{kind} tensors outside of a step", 0)
        notes = _of_graph()
        number = notes["sent"] = notes.get("sent", 0) + 1
        with tf.control_dependencies([notes["met"]]):
            if self.communicator.in_order:
                return self._in_order(lambda: operation(payload, f"tfdist.{kind}.{number}"))
            return operation(payload, f"tfdist.{kind}.{number}")

    def _in_order(self, operation: Callable[[], Any]) -> Any:
        with tf.control_dependencies([self._token.read_value()]):
            result = operation()
        with tf.control_dependencies(tf.nest.flatten(result)):
            self._token.assign_add(1)
        return result

    def _carrier(self, dtype: tf.DType) -> tf.DType:
        """The dtype in which the engine adds: halves as float32, so that a sum cannot overflow and no engine adds them slowly."""
        if dtype.name in self.communicator.sum_dtypes:
            return dtype
        return tf.float32 if dtype.is_floating else tf.int64


def _of_graph() -> dict[str, Any]:
    """What this module notes about the graph that is being built: kept with the graph, and gone with it."""
    notes: list[dict[str, Any]] = tf.compat.v1.get_default_graph().get_collection_ref("tfdist")
    if not notes:
        notes.append({})
    return notes[0]


def _size_bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)
