"""Runs what was planned, in TensorFlow, on a communicator."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.agreement import Agreement
from tfdist.collectives.bucket_sum import BucketSum
from tfdist.collectives.bucket_sum import Kept
from tfdist.collectives.bucket_sum import Message
from tfdist.collectives.bucket_sum import Steps
from tfdist.collectives.bucket_sum import sum_copies
from tfdist.collectives.buckets import plan_buckets
from tfdist.collectives.step_clock import StepClock
from tfdist.communicators import Communicator

# A shorter message costs its latency, not its bytes.
_WORTH_COMPRESSING_BYTES = 16 * 2**10
_SMALL_BUCKET_BYTES = 2**20
_LEAST_BUCKETS = 8
_PARTS_OF_GRAPHS = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")


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
        exact_sum: Sums a bucket.
        compressed_sum: Sums a bucket of gradients; the same as `exact_sum` for no compression.

    Attributes:
        clock: Measures what is traced while it is set; None for nothing.
    """

    def __init__(
        self,
        communicator: Communicator,
        agreement: Agreement,
        fusion_bytes: int,
        exact_sum: BucketSum,
        compressed_sum: BucketSum,
    ) -> None:
        self.communicator = communicator
        self.clock: StepClock | None = None
        self._agreement = agreement
        self._fusion_bytes = fusion_bytes
        self._exact_sum, self._compressed_sum = exact_sum, compressed_sum
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
            clock = self.clock
            numbers = clock.waiting(lambda: meet(number)) if clock is not None else meet(number)
            return np.array(sum(numbers), np.int64)

        def meet(number: np.ndarray) -> Any:
            return self._agreement.meet(purpose(), int(number))

        if tf.executing_eagerly():
            return tf.constant(exchange(np.asarray(value)))
        number = tf.cast(value, tf.int64)
        total = self._in_order(lambda: tf.numpy_function(exchange, [number], tf.int64, name="tfdist_meet"))
        total.set_shape([])
        _of_graph()["met"] = total
        return total

    def all_reduce(self, values: list[list[Any]], kept: dict[Any, Kept] | None = None) -> list[Any]:
        """Sums each value over this process's devices and over all ranks.

        Args:
            values: The copies of each value, one for each device.
            kept: For gradients, which may be compressed: what compressors keep from step to step.

        Returns:
            The sums, of the values' dtypes.
        """
        if self.communicator.size == 1 or not values:
            return sum_copies(values)
        if self.clock is None or tf.executing_eagerly():
            return self._all_reduce(values, kept)
        firsts = [copies[0] for copies in values]
        return self.clock.sending(firsts, lambda: self._all_reduce(values, kept))

    def _all_reduce(self, values: list[list[Any]], kept: dict[Any, Kept] | None) -> list[Any]:
        carried = [[tf.cast(copy, self._carrier(copy.dtype)) for copy in copies] for copies in values]
        firsts = [copies[0] for copies in carried]
        sizes_bytes = [_size_bytes(tensor) for tensor in firsts]
        threshold_bytes = self._threshold_bytes(sum(sizes_bytes))
        buckets = plan_buckets(sizes_bytes, [t.dtype.name for t in firsts], threshold_bytes, _SMALL_BUCKET_BYTES)
        sums = self._run([self._steps(number, [carried[i] for i in bucket], kept) for number, bucket in enumerate(buckets)])
        results = dict(zip(itertools.chain(*buckets), itertools.chain(*sums), strict=True))
        return [tf.cast(results[index], copies[0].dtype) for index, copies in enumerate(values)]

    def all_gather(self, tensor: Any) -> Any:
        """Concatenates the tensors of all ranks along axis 0, by rank."""
        if self.communicator.size == 1:
            return tensor

        def gather() -> Any:
            return self._send(lambda name: self.communicator.all_gather(tensor, name), "gather")

        return gather() if self.clock is None or tf.executing_eagerly() else self.clock.sending([tensor], gather)

    def _threshold_bytes(self, total_bytes: int) -> int:
        """The last bucket is sent when the backward pass has ended: of a small model too, it should be a small part."""
        return min(self._fusion_bytes, max(_SMALL_BUCKET_BYTES, total_bytes // _LEAST_BUCKETS))

    def _steps(self, number: int, values: list[list[Any]], kept: dict[Any, Kept] | None) -> Steps:
        firsts = [copies[0] for copies in values]
        known = all(tensor.shape.is_fully_defined() for tensor in firsts)
        size_bytes = sum(map(_size_bytes, firsts))
        if kept is None or firsts[0].dtype != tf.float32 or not known or size_bytes < _WORTH_COMPRESSING_BYTES:
            return self._exact_sum.steps(values)
        return self._compressed_sum.steps(values, kept.setdefault((number, size_bytes), {}))

    def _run(self, buckets: list[Steps]) -> list[list[Any]]:
        """In turns: the first message of a new bucket, then the next one of each bucket that is under way."""
        sums: list[list[Any]] = [[] for _ in buckets]
        answers: dict[int, Any] = {}
        begun: dict[int, Message] = {}
        gate = self._gate()
        waiting, under_way = list(range(len(buckets))), list[int]()
        while waiting or under_way:
            under_way = waiting[:1] + under_way
            waiting = waiting[1:]
            for bucket in list(under_way):
                # Buckets are prepared in this order too, or the first one would wait for the work of others.
                with tf.control_dependencies(gate):
                    message, sums[bucket] = _next(buckets[bucket], answers.pop(bucket, None))
                if message is None:
                    under_way.remove(bucket)
                    continue
                gate = gate if message.ready is None else [message.ready]
                if message.begun:
                    begun[bucket] = message
                    under_way.remove(bucket)
                else:
                    answers[bucket] = self._send(message.send, "reduce")
        for bucket, message in begun.items():
            # A thread that waits is one less for the backward pass.
            with tf.control_dependencies(gate):
                _, sums[bucket] = _next(buckets[bucket], self._send(message.send, "reduce"))
        return sums

    def _gate(self) -> list[Any]:
        """What comes before the first bucket, whose preparation may begin to send."""
        if tf.executing_eagerly():
            return []
        return [self._met("reduce"), *([self._token.read_value()] if self.communicator.in_order else [])]

    def _send(self, send: Callable[[str], Any], kind: str) -> Any:
        if tf.executing_eagerly():
            return send(f"tfdist.{kind}.eager")
        met, notes = self._met(kind), _of_graph()
        number = notes["sent"] = notes.get("sent", 0) + 1
        with tf.control_dependencies([met]):
            if self.communicator.in_order:
                return self._in_order(lambda: send(f"tfdist.{kind}.{number}"))
            return send(f"tfdist.{kind}.{number}")

    def _met(self, kind: str) -> Any:
        if "met" not in _of_graph():
            self.meet(lambda: f"{kind} tensors outside of a step", 0)
        return _of_graph()["met"]

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


def _next(steps: Steps, answer: Any) -> tuple[Message | None, list[Any]]:
    """The next message of a bucket, or its sums."""
    try:
        return steps.send(answer), []
    except StopIteration as end:
        return None, end.value


def _of_graph() -> dict[str, Any]:
    """What this module notes about the graph that is being built: kept with the graph, and gone with it.

    The branches of a condition belong to the graph around them: the ranks have met there, and names of messages are not used twice.
    """
    graph = tf.compat.v1.get_default_graph()
    while type(graph).__name__ in _PARTS_OF_GRAPHS:
        graph = graph.outer_graph
    notes: list[dict[str, Any]] = graph.get_collection_ref("tfdist")
    if not notes:
        notes.append({})
    return notes[0]


def _size_bytes(tensor: Any) -> int:
    return int(tensor.shape.num_elements() or 0) * int(tensor.dtype.size)
