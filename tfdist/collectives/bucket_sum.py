"""How the tensors of a bucket are summed over ranks."""

from __future__ import annotations

import abc
from collections.abc import Callable
from collections.abc import Generator
from typing import Any
from typing import NamedTuple

import tensorflow as tf


class Message(NamedTuple):
    """What a bucket yields when it wants to communicate.

    Args:
        send: Communicates, given the name that this message has on all ranks.
        ready: A tensor that exists when the message can be sent; None if anything else may be prepared before it as well.
        begun: Whether it is on its way already, and `send` does no more than wait for the answer.
    """

    send: Callable[[str], Any]
    ready: Any = None
    begun: bool = False


Steps = Generator[Message, Any, list[Any]]
Kept = dict[str, Any]


class BucketSum(abc.ABC):
    """Sums buckets; a member of this family is a way to do so.

    A bucket is summed in steps, so that the executor can keep messages of all ranks in one order, and prepare a bucket, or finish
    it, while another one is on the wire:

    ```
    steps = bucket_sum.steps(values)       prepares the first message
    message = next(steps)                  the executor sends it when it is its turn
    message = steps.send(result)           ... until the generator returns the sums
    ```
    """

    @abc.abstractmethod
    def steps(self, values: list[list[Any]], kept: Kept | None = None) -> Steps:
        """Sums values over all ranks.

        Args:
            values: For each value, its copies on this process's devices; all of one dtype out of the communicator's `sum_dtypes`.
            kept: This bucket's variables, which live from step to step; needed by sums that keep what they do not send.

        Returns:
            The steps; their result is the sum over all copies of all ranks, for each value.
        """


def on_gpus(values: list[list[Any]]) -> bool:
    """Whether any copy is on a GPU."""
    return any("GPU" in copy.device for copies in values for copy in copies)


def sum_copies(values: list[list[Any]]) -> list[Any]:
    """Adds the copies of each value, where the first one is."""
    sums = []
    for copies in values:
        with tf.device(copies[0].device):
            sums.append(tf.add_n(copies) if len(copies) > 1 else copies[0])
    return sums
