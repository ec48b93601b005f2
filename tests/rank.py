"""What a launcher starts for each rank of a test: a supervisor, and the process in which the test function runs."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import signal
import sys
import time
import traceback
import warnings
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
# Warnings are errors in tests, but for what libraries do to each other.
ALLOWED_WARNINGS: tuple[tuple[str, type[Warning]], ...] = (
    (r"In the future .np\.object. will be defined", FutureWarning),  # Keras and NumPy
    (r"__array__ implementation doesn't accept a copy keyword", DeprecationWarning),  # TensorFlow and NumPy 2
    (r"\s*TensorFlow Addons .TFA. has ended development", UserWarning),
    (r"non-integer arguments to randrange", DeprecationWarning),  # Keras 2 and Python
)


def this_rank() -> int:
    """The rank of this process, by its launcher's environment."""
    names = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def supervise(socket: str, folder: pathlib.Path, module: str, function: str) -> int:
    """Runs the function in a process of its own and notes how that ends."""
    from tests.preloaded import Process

    rank = this_rank()
    argv = [str(folder), module, function]
    worker = Process(socket, "tests.rank:work", argv, folder / f"{rank}.log", dict(os.environ))
    (folder / f"{rank}.pid").write_text(str(worker.pid))
    signal.signal(signal.SIGTERM, lambda *_: worker.kill())
    code = worker.wait()
    temporary = folder / f"{rank}.exit.tmp"
    temporary.write_text(f"{time.time()} {code}")
    temporary.rename(folder / f"{rank}.exit")
    return 128 - code if code < 0 else code


def work() -> None:
    """Runs the function and writes its error, which is empty if it passed."""
    folder, module, function = sys.argv[1:]
    error = ""
    try:
        test = getattr(importlib.import_module(module), function)
        set_logical_cpus(int(os.environ["TFDIST_TEST_DEVICES"]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for message, category in ALLOWED_WARNINGS:
                warnings.filterwarnings("ignore", message, category)
            getattr(test, "on_rank", test)()
    except BaseException:
        error = traceback.format_exc()
        raise
    finally:
        (pathlib.Path(folder) / f"{this_rank()}.result").write_text(json.dumps(error))


def set_logical_cpus(count: int) -> None:
    """Makes this process have some logical CPUs; must come before TensorFlow does anything."""
    tf: Any = importlib.import_module("tensorflow")
    configurations = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], configurations)


if __name__ == "__main__":
    sys.path[0] = str(ROOT)
    _socket, _folder, _module, _function = sys.argv[1:]
    sys.exit(supervise(_socket, pathlib.Path(_folder), _module, _function))
