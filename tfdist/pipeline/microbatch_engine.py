"""Runs the micro-batches of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist import _keras
from tfdist.pipeline.stages import Batch
from tfdist.pipeline.stages import Stages


class MicrobatchEngine:
    """All forward passes, all backward passes, and one update of all stages: the plain model's.

    Args:
        stages: The stages.
        optimizer: What updates them.
        microbatches: How many a batch is divided into.
    """

    minibatches_under_way = 0

    def __init__(self, stages: Stages, optimizer: Any, microbatches: int) -> None:
        self._stages, self._optimizer, self._count = stages, optimizer, microbatches
        self._run = tf.function(self._step, reduce_retracing=True, autograph=False)

    def begin(self) -> None:
        """Nothing: no batch is left under way."""

    def weight_bytes(self) -> int:
        """None: all passes of a batch use the variables' values."""
        return 0

    def train(self, batches: Sequence[Batch], *, is_last: bool) -> None:
        """A step with each batch."""
        del is_last
        for batch in batches:
            self._check(batch)
        self._run(list(batches))

    def _check(self, batch: Batch) -> None:
        rows = int(tf.nest.flatten(batch[0])[0].shape[0])
        if rows % self._count:
            raise ValueError(
                "A batch is divided into micro-batches of equal size, so that each row counts the same. Received: "
                f"a batch of {rows} rows, microbatches={self._count}."
            )

    # In a graph ------------------------------------------------------------------------------------------------------------

    def _step(self, batches: list[Batch]) -> None:
        self._stages.run(lambda: self._batches(batches))

    def _batches(self, batches: list[Batch]) -> None:
        for batch, share in zip(batches, self._stages.shares(batches), strict=True):
            self._train(batch, share)
        self._stages.share_statistics()

    def _train(self, batch: Batch, share: Any) -> None:
        numbers = range(len(self._stages))
        weights = [self._stages.read(k) for k in numbers]
        passed = [self._forward(piece, weights, share / self._count) for piece in _pieces(batch, self._count)]
        gradients: list[list[list[Any]]] = [[] for _ in numbers]
        for back, kept in passed:
            for k in reversed(numbers):
                back, found = self._stages.backward(k, back, kept[k], weights[k])
                gradients[k].append(found)
        sums = [self._sum(k, gradients[k]) for k in numbers]
        variables = [variable for each in self._stages.variables for variable in each]
        self._stages.apply([each for stage in sums for each in stage], variables, _keras.step_number(self._optimizer))

    def _forward(self, batch: Batch, weights: Sequence[Any], share: Any) -> tuple[Any, list[Any]]:
        minibatch, all_kept = self._stages.enter(batch, share), []
        for k in range(len(self._stages)):
            minibatch, kept = self._stages.forward(k, minibatch, weights[k])
            all_kept.append(kept)
        return self._stages.turn(minibatch), all_kept

    def _sum(self, k: int, gradients: list[list[Any]]) -> list[Any]:
        with self._stages.device(k):
            return [None if pieces[0] is None else tf.add_n(pieces) for pieces in zip(*map(list, gradients), strict=True)]


def _pieces(batch: Batch, count: int) -> list[Any]:
    tensors = tf.nest.flatten(batch)
    divided = [[tensor] * count if tensor is None else tf.split(tensor, count) for tensor in tensors]
    return [tf.nest.pack_sequence_as(batch, [parts[m] for parts in divided]) for m in range(count)]
