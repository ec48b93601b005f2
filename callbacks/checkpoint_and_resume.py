"""Training that can be killed at any moment."""

from __future__ import annotations

import logging
import math
import os
import pathlib
from typing import Any

import keras

from tfdist import _keras
from tfdist._extended import keep_order_of_arithmetic
from tfdist._extended import ranks_of
from tfdist.callbacks import callback_states
from tfdist.callbacks import checkpoint_file
from tfdist.callbacks.checkpoint_file import Checkpoint

_log = logging.getLogger(__name__)


class CheckpointAndResume(keras.callbacks.Callback):
    """Saves everything at the end of epochs, or more often, and goes on from there when the script is started again.

    ```
    fit begins:                      the newest whole file, read by rank 0 alone, is given to all ranks; fit goes on from there
    an epoch, or n steps, are over:  rank 0 writes a file under another name and renames it
    ```

    A file holds weights, the optimizer's variables, on each rank what only that rank has (such as what `DGC` has not sent), the
    random states of Python, NumPy and Keras, how far the dataset has been shuffled and read, what metrics have counted, and what
    callbacks remember. A run that was killed and started again ends with the weights of one that was not. Put it first in the
    list of callbacks.

    A callback of yours takes part by two methods: `get_state()`, which returns a dictionary of plain values, and
    `set_state(state)`. One that has attributes, but not these methods, is named in a warning.

    With another number of ranks, rank q of Q goes on with the sum of what ranks q, q + Q, q + 2 Q ... had for themselves.

    Args:
        directory: The folder of this run; all ranks may name the same, only rank 0 uses it.
        every_epochs: How many epochs lie between two files, 1 or more. The last epoch is always saved. Defaults to 1.
        keep: How many files stay, 1 or more; more than one, in case one is damaged. Defaults to 2.
        every_steps: How many steps lie between two files within an epoch, 1 or more; later if gradients wait to be added up, and
            not before the last step. Batches that were read before are read again, and left out. Defaults to `None`: none.

    Raises:
        ValueError: If a number is outside its range; in `fit`, if the folder holds another model's checkpoints, those of another
            format, or only damaged ones. Nothing is overwritten then.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history = model.fit(x, y, epochs=2, verbose=0, callbacks=[CheckpointAndResume(folder)])
        ...     history = model.fit(x, y, epochs=3, verbose=0, callbacks=[CheckpointAndResume(folder)])
        >>> history.epoch
        [2]

    Limits:
        What was done since the last file is done again. Keras 2's dropout draws from the state of its operations, which cannot be
        saved. With another number of ranks the metrics of an epoch begin anew where it goes on.
    """

    steers = True

    def __init__(
        self, directory: str | os.PathLike[str], every_epochs: int = 1, keep: int = 2, every_steps: int | None = None
    ) -> None:
        super().__init__()
        _keras.check_number("every_epochs", every_epochs, lambda n: n >= 1, "a number of epochs, 1 or more")
        _keras.check_number("keep", keep, lambda n: n >= 1, "a number of files, 1 or more")
        if every_steps is not None:
            _keras.check_number("every_steps", every_steps, lambda n: n >= 1, "a number of steps, 1 or more")
        self.directory, self.every_epochs, self.keep = pathlib.Path(directory), every_epochs, keep
        self.every_steps = every_steps
        self._resumed: Checkpoint | None = None
        self._begun_at = self._saved = -1
        self._saved_step = 0
        self._ended = self._epoch = 0
        self._has_warned = False

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if self.every_steps is not None and getattr(self.model, "overlaps_minibatches", False):
            raise ValueError(
                "Within an epoch a pipeline has minibatches under way, which no file holds: use `every_epochs` alone, or "
                f'schedule="gpipe". Received: every_steps={self.every_steps}.'
            )
        self._begun_at, self._resumed = -1, None
        # TensorFlow would rewrite the arithmetic of a step in one way here, and in another in the next process.
        keep_order_of_arithmetic()
        checkpoint = self._read()
        if checkpoint is None:
            return
        self._check(checkpoint)
        place = self._place_of(checkpoint)
        _keras.restore_training(self.model, checkpoint.arrays, self._ranks())
        _keras.go_on(place)
        self._resumed = checkpoint
        self._saved = self._ended = place.epoch
        # Those whose batch size is read before an epoch is said to begin need it now; others forget when training begins.
        callback_states.restore(_keras.fit_callbacks(), checkpoint.about["callbacks"])
        if self._ranks().rank == 0:
            _log.info("Training goes on at epoch %d, step %d.", place.epoch, place.step)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch, self._saved_step = epoch, 0
        if self._begun_at < 0:
            self._begun_at = epoch
            if self._resumed is not None:
                callback_states.restore(_keras.fit_callbacks(), self._resumed.about["callbacks"])
        elif epoch % self.every_epochs == 0:
            # Only now have all callbacks ended the epoch before.
            self._save(_keras.place_between(epoch, has_begun=True))

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._resumed is not None:
            self._go_on_within(self._resumed)
            return
        is_due = self.every_steps is not None and batch - self._saved_step >= self.every_steps
        is_last = batch + 1 >= (self.params.get("steps") or math.inf)
        if is_due and not is_last and _keras.batches_of_update(self.model.optimizer)[0] == 0:
            self._saved_step = batch
            self._save(_keras.place_within(self._epoch, batch))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self._resumed is None:
            return
        # Keras 2 has its metrics only now.
        if self._place_of(self._resumed).step and not _keras.KERAS_3:
            _keras.restore_metrics(self.model, self._resumed.arrays["metrics"], self._ranks())
            if logs is not None:
                logs.update(_keras.metrics_now(self.model))
        self._resumed = None

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._ended = epoch + 1

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._ended > self._saved:
            self._save(_keras.place_between(self._ended, has_begun=False))
        _keras.go_on_as_told(self.model)

    def get_config(self) -> dict[str, Any]:
        """The arguments that ranks compare."""
        return {"every_epochs": self.every_epochs, "keep": self.keep, "every_steps": self.every_steps}

    def get_state(self) -> dict[str, Any]:
        """Nothing: it is the checkpoint."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def _ranks(self) -> Any:
        return ranks_of(self.model.distribute_strategy)

    @staticmethod
    def _place_of(checkpoint: Checkpoint) -> _keras.Place:
        return _keras.Place(**checkpoint.about["place"])

    def _go_on_within(self, checkpoint: Checkpoint) -> None:
        """Before the first step: what callbacks have done since an epoch that had begun before was said to begin is undone."""
        place = self._place_of(checkpoint)
        _keras.read_on(place)
        if not place.step:
            return
        _keras.restore_training(self.model, checkpoint.arrays, self._ranks())
        callback_states.restore(_keras.fit_callbacks(), checkpoint.about["callbacks"])
        if _keras.KERAS_3:
            _keras.restore_metrics(self.model, checkpoint.arrays["metrics"], self._ranks())
        self._saved_step = place.step

    def _save(self, place: _keras.Place) -> None:
        ranks, callbacks = self._ranks(), _keras.fit_callbacks()
        arrays = _keras.training_state(self.model, ranks)
        if place.step:
            arrays["metrics"] = _keras.metric_state(self.model, ranks)
        else:
            self._saved = place.epoch
        if ranks.rank != 0:
            return
        if not self._has_warned:
            callback_states.warn_of_others(callbacks)
        self._has_warned = True
        about = {
            "format": checkpoint_file.FORMAT,
            "place": place._asdict(),
            "ranks": ranks.size,
            "model": _keras.signature(self.model),
            "callbacks": callback_states.collect(callbacks),
        }
        data = checkpoint_file.pack(Checkpoint(about, arrays))
        checkpoint_file.write(self.directory, place.epoch, place.step, data, self.keep)

    def _read(self) -> Checkpoint | None:
        """The newest checkpoint, which rank 0 reads for all; an error of it is that of all."""
        ranks = self._ranks()
        message = b""
        if ranks.rank == 0:
            message = self._read_alone()
        message = ranks.broadcast_bytes(message)
        if message[:1] == b"!":
            raise ValueError(message[1:].decode())
        return checkpoint_file.unpack(message) if message else None

    def _read_alone(self) -> bytes:
        try:
            found = checkpoint_file.newest(self.directory)
        except ValueError as error:
            return b"!" + str(error).encode()
        return b"" if found is None else found[0].read_bytes()

    def _check(self, checkpoint: Checkpoint) -> None:
        about = checkpoint.about
        if about.get("format") != checkpoint_file.FORMAT:
            raise ValueError(
                f"These checkpoints were written by another version of tfdist. Received: {self.directory} with format "
                f"{about.get('format')}; this one reads {checkpoint_file.FORMAT}."
            )
        with self.model.distribute_strategy.scope():
            _keras.build_optimizer(self.model)
        mine = _keras.signature(self.model)
        if about["model"] == mine:
            return
        theirs = about["model"]
        differ = (f"{other} in the file, {own} here" for other, own in zip(theirs, mine, strict=False) if other != own)
        first = next(differ, f"{len(theirs)} variables in the file, {len(mine)} here")
        raise ValueError(
            "These checkpoints are of another model or optimizer; give another folder, or remove them. Received: "
            f"{self.directory}, {first}."
        )
