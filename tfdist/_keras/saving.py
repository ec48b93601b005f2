"""How Keras writes files."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any


def save_atomically(is_ours: Callable[[Any], bool]) -> None:
    """Makes Keras write the files of some models under a temporary name, and rename them when they are whole.

    All ranks may then save to one path at once, and a rank that dies while it saves leaves the file before readable. Keras offers
    no hook for this, so its two writing functions are wrapped, once; they do as before for every other model.

    Args:
        is_ours: Whether a model is one whose files are to be written in this way.
    """
    module = importlib.import_module("keras.src.saving.saving_lib")
    for name in ("save_model", "save_weights_only"):
        write = getattr(module, name)
        if not hasattr(write, "tfdist_wraps"):
            setattr(module, name, _atomic(write, is_ours))


def _atomic(write: Callable[..., Any], is_ours: Callable[[Any], bool]) -> Callable[..., Any]:
    @functools.wraps(write)
    def write_and_rename(model: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        path = str(filepath)
        if not isinstance(filepath, str | os.PathLike) or "://" in path or os.path.isdir(path) or not is_ours(model):
            return write(model, filepath, *args, **kwargs)
        folder, base = os.path.split(path)
        # The ending is kept, since Keras goes by it; the process id makes the name one rank's own.
        temporary = os.path.join(folder, f".{os.getpid()}.{base}")
        try:
            result = write(model, temporary, *args, **kwargs)
            os.replace(temporary, path)
        finally:
            if os.path.isfile(temporary):
                os.remove(temporary)
        return result

    write_and_rename.tfdist_wraps = write  # type: ignore[attr-defined]
    return write_and_rename
