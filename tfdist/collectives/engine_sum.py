"""The engine's own all-reduce, tensor by tensor."""

from __future__ import annotations

from typing import Any

from tfdist.collectives.bucket_sum import BucketSum
from tfdist.collectives.bucket_sum import Kept
from tfdist.collectives.bucket_sum import Message
from tfdist.collectives.bucket_sum import Steps
from tfdist.collectives.bucket_sum import sum_copies
from tfdist.communicators import Communicator


class EngineSum(BucketSum):
    """Leaves the tensors of a bucket where they are, on GPUs, to an engine that packs them there itself."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def steps(self, values: list[list[Any]], kept: Kept | None = None) -> Steps:
        del kept
        tensors = sum_copies(values)
        sums: list[Any] = yield Message(lambda name: self._communicator.all_reduce(tensors, name))
        return sums
