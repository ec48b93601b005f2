"""Before ranks communicate, they agree on what they are about to do."""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from tfdist.communicators import Communicator
from tfdist.settings import differences

_log = logging.getLogger(__name__)

_GO_ON, _LEAVE = 0, 1
_WARN_AFTER_S = 60.0
_LEAVE_AFTER_ERROR_S = 10.0


class RankMismatchError(RuntimeError):
    """Ranks that should do the same thing do not, or one of them has left; the message names them."""


class Agreement:
    """Lets ranks meet, and ends all of them with the same error if they do not want the same thing.

    Collective operations that do not match hang, or mix up data. So every step, and every other use of the network, begins with a
    meeting: each rank tells the others, in 24 bytes, what it is about to do. A rank whose script ends, or fails, also comes to a
    meeting, and says why.

    ```
    rank 0   meet("fit: train_step")            meet("fit: train_step")     both raise:
    rank 1   meet("fit: train_step")  on        leave("ValueError: ...")    rank 1 left (ValueError: ...) when rank 0 ...
    ```

    Args:
        communicator: Reaches the other ranks.
    """

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._over = communicator.size == 1
        self._failure = ""
        if not self._over:
            self._watch = _Watch(communicator.rank)
            self._watch_exit()

    def meet(self, purpose: str, value: int = 0) -> list[int]:
        """Waits for all ranks and exchanges one number.

        Args:
            purpose: What this rank is about to do; must be the same on all ranks.
            value: A number to exchange.

        Returns:
            The numbers of all ranks, by rank.

        Raises:
            RankMismatchError: On every rank, if a purpose differs or a rank has left.
        """
        if self._communicator.size == 1:
            return [value]
        return [int(number) for number in self._exchange(_GO_ON, purpose, value)]

    def compare(self, purpose: str, settings: dict[str, Any]) -> None:
        """Checks that the settings of all ranks are equal.

        Args:
            purpose: What the settings belong to, for the message.
            settings: Nested dictionaries and lists of plain values.

        Raises:
            RankMismatchError: On every rank; the message names the settings that differ, their values and the ranks.
        """
        text = json.dumps(settings, sort_keys=True, default=str)
        if len(set(self.meet(f"compare settings: {purpose}", zlib.crc32(text.encode())))) == 1:
            return
        lines = differences([json.loads(text) for text in self._gather_texts(text)])
        self._over = True
        raise RankMismatchError(
            f"All ranks must run {purpose} with the same settings, or they train different models. Received: {'; '.join(lines)}. "
            "Check that every host has the same script, data and packages."
        )

    def leave(self, reason: str = "its script ended") -> None:
        """Tells the other ranks that this one will take part in nothing more."""
        if self._over:
            return
        self._over = True
        try:
            self._exchange(_LEAVE, reason, 0)
        except RankMismatchError as error:
            _log.error("%s", error)

    def _exchange(self, move: int, text: str, value: int) -> np.ndarray:
        self._watch.start(text)
        row = np.array([[zlib.crc32(f"{move} {text}".encode()), value, move]], np.int64)
        table = self._gather(row, text)
        self._watch.stop()
        if (table[:, 0] == table[0, 0]).all() or (table[:, 2] == _LEAVE).all():
            return table[:, 1]
        texts = self._gather_texts(text)
        self._over = True
        raise RankMismatchError(_describe(texts, table[:, 2] == _LEAVE))

    def _gather(self, array: np.ndarray, purpose: str) -> np.ndarray:
        try:
            return self._communicator.gather_array(array)
        except Exception as error:
            self._over = True
            raise RankMismatchError(
                f"Rank {self._communicator.rank} lost the connection to another rank before: {purpose}. That rank died; the "
                f"launcher's output names it. ({type(error).__name__}: {error})"
            ) from error

    def _gather_texts(self, text: str) -> list[str]:
        encoded = np.frombuffer(text.encode(), np.uint8)
        lengths = self._gather(np.array([len(encoded)], np.int64), text)
        joined = self._gather(encoded, text).tobytes()
        ends = np.cumsum(lengths)
        return [joined[end - length : end].decode() for length, end in zip(lengths, ends, strict=True)]

    def _watch_exit(self) -> None:
        previous = sys.excepthook

        def note_failure(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failure = f"{kind.__name__}: {error}".splitlines()[0][:200]
            previous(kind, error, trace)

        sys.excepthook = note_failure
        atexit.register(self._leave_at_exit)

    def _leave_at_exit(self) -> None:
        if not self._failure:
            self.leave()
            return
        # After an error the others may be in the middle of a step that this rank will never finish: then they cannot come.
        thread = threading.Thread(target=self.leave, args=(self._failure,), daemon=True)
        thread.start()
        thread.join(_LEAVE_AFTER_ERROR_S)
        if thread.is_alive():
            _log.error(
                "Rank %d fails (%s) while the others wait for it in a step; all are ended.",
                self._communicator.rank,
                self._failure,
            )
            self._communicator.abort()


def _describe(texts: Sequence[str], left: np.ndarray) -> str:
    gone = [f"rank {rank} left ({text})" for rank, text in enumerate(texts) if left[rank]]
    present = [f"rank {rank} was about to: {text}" for rank, text in enumerate(texts) if not left[rank]]
    rule = "Every rank must run the same steps: call fit, evaluate and predict on all ranks, with the same data and epochs, and "
    rule += "give callbacks that stop training, such as EarlyStopping, to all ranks. Received: "
    return rule + "; ".join(gone + present) + "."


class _Watch:
    """Says, once for each wait, that the other ranks have not come for a minute."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._waiting: tuple[float, str] | None = None
        threading.Thread(target=self._look, daemon=True, name="tfdist-watch").start()

    def start(self, purpose: str) -> None:
        self._waiting = (time.monotonic(), purpose)

    def stop(self) -> None:
        self._waiting = None

    def _look(self) -> None:
        told = None
        while True:
            time.sleep(_WARN_AFTER_S / 10)
            waiting = self._waiting
            if waiting is not None and waiting is not told and time.monotonic() - waiting[0] > _WARN_AFTER_S:
                told = waiting
                _log.warning("Rank %d has waited %g s for other ranks, about to: %s.", self._rank, _WARN_AFTER_S, waiting[1])
