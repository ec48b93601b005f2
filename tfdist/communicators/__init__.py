"""How it is sent: one file an engine."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

from tfdist.communicators.base import Communicator as Communicator
from tfdist.communicators.local import LocalCommunicator
from tfdist.launch import Launch
from tfdist.launch import read_launch

ENGINES = {
    "local": "tfdist.communicators.local:LocalCommunicator",
    "horovod": "tfdist.communicators.horovod:HorovodCommunicator",
    "mpi": "tfdist.communicators.mpi:MpiCommunicator",
}

_INSTALL = {
    "horovod": "build Horovod's wheel with `docker/horovod_wheel.sh python` and install it (PyPI has its source only, which does "
    "not build for TensorFlow 2.16 and later)",
    "mpi": "`pip install tfdist[mpi]`",
}


def create_communicator(name: str = "auto", environ: Mapping[str, str] | None = None) -> Communicator:
    """Makes the communicator of this process.

    Args:
        name: "local", "horovod", "mpi", or "auto" to go by the launcher's environment. Defaults to "auto".
        environ: The environment variables. Defaults to `os.environ`.

    Returns:
        The communicator; a `LocalCommunicator` if "auto" finds no launcher, or one that started a single process.

    Raises:
        ValueError: If the name is not known.
        RuntimeError: If the environment says that this is one of several processes and no engine reaches the others. It is never
            taken for a job of its own without a word.

    Example:
        >>> create_communicator("auto", environ={}).name
        'local'
    """
    if name != "auto" and name not in ENGINES:
        raise ValueError(f"`communicator` must be 'auto' or one of {sorted(ENGINES)}. Received: communicator={name!r}.")
    launch = read_launch(os.environ if environ is None else environ)
    if name == "local" or (name == "auto" and (launch is None or launch.size == 1)):
        return LocalCommunicator()
    engine = name if launch is None or name != "auto" else launch.engine
    if engine is None:
        raise RuntimeError(f"{_one_of_many(launch)} no engine knows this launcher. {launch.hint if launch else ''}.{_ALONE}")
    communicator = _load(engine, launch)
    if launch is not None and communicator.size != launch.size:
        raise RuntimeError(
            f"{_one_of_many(launch)} {engine} sees {communicator.size}: its library does not know this launcher. Start the script "
            f"with the launcher that came with the library.{_ALONE}"
        )
    return communicator


_ALONE = " To train in this process alone, on purpose, pass `communicator='local'`."


def _one_of_many(launch: Launch | None) -> str:
    if launch is None:
        return "No launcher's variables are set, and"
    return f"{launch} started {launch.size} processes, but"


def _load(engine: str, launch: Launch | None) -> Communicator:
    module, _, cls = ENGINES[engine].partition(":")
    try:
        return getattr(importlib.import_module(module), cls)()
    except Exception as error:
        raise RuntimeError(
            f"{_one_of_many(launch)} the engine {engine!r} does not start ({type(error).__name__}: {error}). "
            f"To install it: {_INSTALL[engine]}.{_ALONE}"
        ) from error
