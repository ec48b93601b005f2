"""Runs a plan on this rank's array."""

from __future__ import annotations

from typing import Any
from typing import NamedTuple

import numpy as np

from tfdist.collectives.plan import Plan
from tfdist.communicators.transport import DEFAULT_CHUNK_BYTES
from tfdist.communicators.transport import Transport


class Piece(NamedTuple):
    """One chunk that this rank sends, or receives, in a round."""

    peer: int
    start: int
    stop: int
    add: bool


class RankRound(NamedTuple):
    """What one rank does in a round."""

    sends: tuple[Piece, ...]
    receives: tuple[Piece, ...]


class PlanRunner:
    """Runs plans over a transport, in place.

    ```
    a round:  post all receives       to add: into scratch, chunk by chunk;  to replace: into the array itself
              post all sends          straight from the array
              as a chunk arrives      array[chunk] += scratch[chunk], while the next ones are on the wire
              until all are done
    ```

    All receives of a round are posted at once: a window of a few chunks leaves a wire with a long queue idle.

    Args:
        transport: Reaches the other ranks.
        chunk_bytes: What is added at once. Defaults to 1 MiB.
    """

    def __init__(self, transport: Transport, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> None:
        self._transport = transport
        self._chunk_bytes = chunk_bytes
        self._scratch = np.empty(0, np.uint8)

    def compile(self, plan: Plan, itemsize: int) -> list[RankRound]:
        """What this rank does in each round in which it does something.

        Args:
            plan: For as many ranks as the transport reaches.
            itemsize: The bytes of an element.

        Raises:
            ValueError: If the plan is for another number of ranks.
        """
        if plan.size != self._transport.size:
            raise ValueError(
                "A plan is for a number of ranks; with others, some would wait for ever. Received: a plan for "
                f"{plan.size} ranks, run by {self._transport.size}."
            )
        chunk = max(1, self._chunk_bytes // itemsize)
        rounds = (_rank_round(transfers, self._transport.rank, chunk) for transfers in plan)
        return [round_ for round_ in rounds if round_.sends or round_.receives]

    def run(self, rounds: list[RankRound], array: np.ndarray) -> None:
        """Sums `array`, in place, with those of all ranks that run the same plan.

        Args:
            rounds: From `compile`.
            array: One dimension, contiguous.
        """
        # Infinities and NaNs are the user's to see in the sum, on every rank; they are no error here.
        with np.errstate(all="ignore"):
            for sends, receives in rounds:
                self._run_round(array, sends, receives)

    def exchange(self, outgoing: np.ndarray, incoming: np.ndarray) -> None:
        """Gives row r of a matrix to each other rank r, and receives a row from each.

        Args:
            outgoing: As many rows as ranks; each contiguous.
            incoming: The same shape and dtype; this rank's own row is left as it is.
        """
        others = [rank for rank in range(self._transport.size) if rank != self._transport.rank]
        chunk = max(1, self._chunk_bytes // outgoing.itemsize)
        pieces = [(rank, slice(start, start + chunk)) for rank in others for start in range(0, outgoing.shape[1], chunk)]
        requests = [self._transport.receive(incoming[rank, part], rank) for rank, part in pieces]
        requests += [self._transport.send(outgoing[rank, part], rank) for rank, part in pieces]
        left = len(requests)
        while left:
            left -= len(self._transport.wait_some(requests))

    def _run_round(self, array: np.ndarray, sends: tuple[Piece, ...], receives: tuple[Piece, ...]) -> None:
        targets = self._targets(array, receives)
        requests = [self._transport.receive(target, piece.peer) for target, piece in zip(targets, receives, strict=True)]
        requests += [self._transport.send(array[piece.start : piece.stop], piece.peer) for piece in sends]
        left = len(requests)
        while left:
            for index in self._transport.wait_some(requests):
                left -= 1
                if index < len(receives) and receives[index].add:
                    view = array[receives[index].start : receives[index].stop]
                    np.add(view, targets[index], out=view)

    def _targets(self, array: np.ndarray, receives: tuple[Piece, ...]) -> list[np.ndarray]:
        """Where each chunk is received: one that is to be added beside the array, another in its place."""
        scratch = self._scratch_for(sum(piece.stop - piece.start for piece in receives if piece.add), array.dtype)
        targets, used = [], 0
        for piece in receives:
            if piece.add:
                length = piece.stop - piece.start
                targets.append(scratch[used : used + length])
                used += length
            else:
                targets.append(array[piece.start : piece.stop])
        return targets

    def _scratch_for(self, length: int, dtype: np.dtype[Any]) -> np.ndarray:
        needed = length * dtype.itemsize
        if len(self._scratch) < needed:
            self._scratch = np.empty(needed, np.uint8)
        return self._scratch[:needed].view(dtype)


def _rank_round(transfers: np.ndarray, rank: int, chunk: int) -> RankRound:
    def pieces(mine: str, other: str) -> tuple[Piece, ...]:
        chosen = transfers[transfers[mine] == rank]
        return tuple(
            Piece(int(t[other]), start, min(start + chunk, int(t["stop"])), bool(t["add"]))
            for t in chosen
            for start in range(t["start"], t["stop"], chunk)
        )

    return RankRound(sends=pieces("source", "destination"), receives=pieces("destination", "source"))
