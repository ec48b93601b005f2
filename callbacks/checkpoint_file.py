"""Checkpoints as files: whole or not at all, and found damaged if they are."""

from __future__ import annotations

import io
import json
import logging
import os
import pathlib
import re
import zipfile
from typing import Any
from typing import NamedTuple

import numpy as np

_log = logging.getLogger(__name__)
FORMAT = 2
_PATTERN = re.compile(r"epoch-(\d{6,})(?:-step-(\d{8,}))?\.tfdist")


class Checkpoint(NamedTuple):
    """What is in a file."""

    about: dict[str, Any]
    """Plain values: the format, the epoch, the model's signature, states of callbacks."""

    arrays: dict[str, np.ndarray]
    """Values of variables."""


def pack(checkpoint: Checkpoint) -> bytes:
    """A checkpoint as bytes, with sums that tell whether they are whole.

    Example:
        >>> unpack(pack(Checkpoint({"epoch": 3}, {"w": np.ones(2)}))).about
        {'epoch': 3}
    """
    buffer = io.BytesIO()
    about = np.frombuffer(json.dumps(checkpoint.about).encode(), np.uint8)
    np.savez(buffer, **{**checkpoint.arrays, "__about__": about})  # type: ignore[arg-type]
    return buffer.getvalue()


def unpack(data: bytes) -> Checkpoint:
    """What `pack` packed.

    Raises:
        ValueError: If it is not whole.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        about = json.loads(arrays.pop("__about__").tobytes().decode())
    except (zipfile.BadZipFile, EOFError, KeyError, OSError, ValueError) as error:
        raise ValueError(f"not a whole checkpoint ({error})") from error
    return Checkpoint(about, arrays)


def write(folder: pathlib.Path, epoch: int, step: int, data: bytes, keep: int) -> pathlib.Path:
    """Writes a file that is there whole or not at all, and removes the oldest ones.

    Args:
        folder: Where; it is made if need be.
        epoch: The epoch that comes next, or goes on.
        step: How many steps of it are over.
        data: The file's bytes.
        keep: How many files remain, 1 or more.

    Returns:
        The file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"epoch-{epoch:06d}-step-{step:08d}.tfdist" if step else f"epoch-{epoch:06d}.tfdist")
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    for old in files(folder)[:-keep]:
        old.unlink()
    return path


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    """The checkpoints in a folder, the newest last."""
    found = [(match, path) for path in folder.glob("*.tfdist") if (match := _PATTERN.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda pair: (int(pair[0][1]), int(pair[0][2] or 0)))]


def newest(folder: pathlib.Path) -> tuple[pathlib.Path, Checkpoint] | None:
    """The newest checkpoint that is whole; damaged ones are named in a warning. None if there is none.

    Raises:
        ValueError: If there are checkpoints, and all of them are damaged.
    """
    damaged = []
    for path in reversed(files(folder)):
        try:
            return path, unpack(path.read_bytes())
        except ValueError as error:
            _log.warning("%s is damaged: %s. The one before it is used.", path, error)
            damaged.append(path.name)
    if damaged:
        raise ValueError(
            "No checkpoint in this folder is whole, and none is overwritten; give another folder to begin anew. Received: "
            f"{folder} with {', '.join(damaged)}."
        )
    return None
