"""Buckets that an engine sums as one tensor."""

from __future__ import annotations

from typing import Any

from tfdist.collectives.bucket_sum import BucketSum
from tfdist.collectives.bucket_sum import Kept
from tfdist.collectives.bucket_sum import Message
from tfdist.collectives.bucket_sum import Steps
from tfdist.collectives.packing import Packer
from tfdist.collectives.packing import unpack
from tfdist.communicators import Communicator


class PackedSum(BucketSum):
    """Packs a bucket, and has the engine sum it.

    Args:
        communicator: The engine.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._packer = Packer()

    def steps(self, values: list[list[Any]], kept: Kept | None = None) -> Steps:
        del kept
        packed = self._packer.pack(values)
        (total,) = yield Message(lambda name: self._communicator.all_reduce([packed], name), packed)
        return unpack(total, [copies[0] for copies in values])
