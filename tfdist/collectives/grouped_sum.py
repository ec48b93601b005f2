"""Sums inside the hosts first, then across, with compression across."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import tensorflow as tf

from tfdist.collectives.bucket_sum import BucketSum
from tfdist.collectives.bucket_sum import Kept
from tfdist.collectives.bucket_sum import Message
from tfdist.collectives.bucket_sum import Steps
from tfdist.collectives.packing import Packer
from tfdist.collectives.packing import unpack
from tfdist.communicators.group import Group
from tfdist.compression import Compressor

_ALIGNED_ELEMENTS = 16


class GroupedSum(BucketSum):
    """Reduce-scatter inside each host, all-reduce of each shard across hosts, all-gather inside.

    ```
    k ranks a host, H hosts, p = k * H; a bucket of n elements
    inside    reduce-scatter               float32                        n / k elements are left to each rank
    across    without a compressor:        the group's all-reduce
              with one:  encode H rows, one for each host         row h:  n / p elements
                         all-to-all, decode, add in float32       this rank now has the sum of its n / p elements
                         encode, all-gather, decode               all have the same bytes, and so the same sum
    inside    all-gather                   float32
    ```

    With a compressor each element is rounded twice, whatever the number of ranks. If the compressor keeps its error, this rank
    keeps that of its H rows and that of the sum of its part, and adds them in the next step.

    Args:
        inside: The ranks of this host.
        across: The ranks with this one's place on each host.
        compressor: What makes messages across hosts smaller; None for the plain sum. Defaults to `None`.
    """

    def __init__(self, inside: Group, across: Group, compressor: Compressor | None = None) -> None:
        self._inside, self._across, self._compressor = inside, across, compressor
        self._packer = Packer(inside.size * across.size * _ALIGNED_ELEMENTS)

    def steps(self, values: list[list[Any]], kept: Kept | None = None) -> Steps:
        packed = part = self._packer.pack(values)
        length = packed.shape[0]
        if self._inside.size > 1:
            part = yield Message(lambda name: self._inside.reduce_scatter(packed, name), packed)
        if self._compressor is None:
            part = yield Message(lambda name: self._across.all_reduce(part, name), part)
        else:
            part = yield from self._sum_compressed(
                self._compressor, part, length // self._inside.size, {} if kept is None else kept
            )
        if self._inside.size > 1:
            part = yield Message(lambda name: self._inside.all_gather(part, name))
        return unpack(part, [copies[0] for copies in values])

    def _sum_compressed(self, compressor: Compressor, part: Any, length: int, kept: Kept) -> Generator[Message, Any, Any]:
        hosts, ranks = self._across.size, self._across.size * self._inside.size
        row = length // hosts
        rows = tf.reshape(part, [hosts, row])
        if compressor.divide_first:
            rows = rows / ranks
        wire = self._encode(compressor, rows, kept, "rows", [hosts, row])
        received = yield Message(lambda name: self._across.all_to_all(wire, name), wire)
        total = tf.reduce_sum(compressor.decode(received, row), axis=0, keepdims=True)
        total_wire = self._encode(compressor, total, kept, "total", [1, row])
        flat = tf.reshape(total_wire, [-1])
        gathered = yield Message(lambda name: self._across.all_gather(flat, name))
        whole = tf.reshape(compressor.decode(tf.reshape(gathered, [hosts, -1]), row), [length])
        return whole * ranks if compressor.divide_first else whole

    def _encode(self, compressor: Compressor, x: Any, kept: Kept, name: str, shape: list[int]) -> Any:
        if not compressor.keeps_error:
            return compressor.encode(x)
        if name not in kept:
            with tf.init_scope(), tf.device("CPU:0"):
                kept[name] = tf.Variable(tf.zeros(shape), trainable=False, name=f"tfdist_kept_{name}")
        x = x + kept[name]
        wire = compressor.encode(x)
        error = x - compressor.decode(wire, shape[1])
        # What is infinite or NaN was sent as such; there is nothing left of it.
        kept[name].assign(tf.where(tf.math.is_finite(error), error, 0.0))
        return wire
