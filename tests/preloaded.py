"""A process that has imported TensorFlow, and forks others from it: they start at once instead of in three seconds.

    server ── one keeper a request ── the process asked for
                notes how it ends       with the environment, folder, CPUs and log that were asked for

`preloaded()` is the server of this test run, which ends with it. Of a process that was asked for, closing the connection is the
end: whoever asked may be killed and leaves nothing behind.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import os
import pathlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
_MODULES = ("tensorflow", "keras", "pytest", "tfdist", "tfdist.callbacks", "tfdist.optimizers", "tfdist.pipeline")


@functools.cache
def preloaded() -> str:
    """The socket of this process's server, which is started at the first call."""
    folder = tempfile.mkdtemp(prefix="tfdist-preloaded-")
    path = os.path.join(folder, "socket")
    environ = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, path],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        preexec_fn=die_with_parent,
    )
    if not server.stdout.readline():
        raise RuntimeError("The server of preloaded processes did not start: run it by hand to see why.")
    atexit.register(_end, server, folder)
    return path


def _end(server: subprocess.Popen[bytes], folder: str) -> None:
    server.kill()
    server.wait()
    server.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)


class Process:
    """A process forked from the server, in which `module:function` runs with the words of `sys.argv[1:]`.

    Its folder is that of its log, into which its standard output and errors go.
    """

    def __init__(self, path: str, function: str, argv: list[str], log: pathlib.Path, environ: dict[str, str]) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(path)
        cpus = sorted(os.sched_getaffinity(0))
        request = {"function": function, "argv": argv, "log": str(log), "environ": environ, "cpus": cpus}
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self._answers = self._connection.makefile()
        self.pid = int(self._answers.readline())
        self._code: int | None = None

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit code, or minus the signal that ended the process.

        Raises:
            TimeoutError: If it does not end in time.
        """
        if self._code is None:
            if not select.select([self._connection], [], [], timeout_s)[0]:
                raise TimeoutError(f"Process {self.pid} did not end within {timeout_s:g} s.")
            self._code = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self._code

    def kill(self) -> None:
        """Ends the process, and what it started in its session."""
        if self._code is None:
            self._connection.shutdown(socket.SHUT_WR)


def execute() -> None:
    """Becomes another program."""
    os.execvp(sys.argv[1], sys.argv[1:])


def die_with_parent() -> None:
    """Has the kernel end this process when its parent ends."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


# In the server -------------------------------------------------------------------------------------------------------------


def _serve(path: str) -> None:
    for module in _MODULES:
        importlib.import_module(module)
    # What is imported is neither looked at nor copied by the collector of each fork.
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(16)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if not os.fork():
            listener.close()
            _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> None:
    """Starts the process, tells its id, and then how it ended; ends it when nobody listens any more."""
    die_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request = json.loads(connection.makefile().readline())
    pid = os.fork()
    if not pid:
        connection.close()
        _become(request)
    connection.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _kill_session(pid)
    try:
        connection.sendall(f"{code}\n".encode())
    except OSError:
        pass
    os._exit(0)


def _kill_session(pid: int) -> None:
    """Ends what the process has left running."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _become(request: dict[str, Any]) -> None:
    """Runs the function in this process as if Python had been started for it."""
    die_with_parent()
    os.setsid()
    os.chdir(os.path.dirname(request["log"]))
    os.environ.clear()
    os.environ.update(request["environ"])
    os.sched_setaffinity(0, request["cpus"])
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.path[0] = str(ROOT)
    faulthandler.enable()
    importlib.import_module("numpy").random.seed()
    module, function = request["function"].split(":")
    sys.argv[1:] = request["argv"]
    sys.exit(getattr(importlib.import_module(module), function)())


if __name__ == "__main__":
    _serve(sys.argv[1])
