"""Starts of a training script that are killed, and one that is not: `make soak` does so at many moments, on several layouts."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np
import psutil

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from tests.harness import launch_command
from tests.harness import launch_environ
from tests.harness import Layout

EPOCHS, STEPS = 5, 8
_SCRIPT = f"""
import sys, time
import keras, numpy as np
from tests.callbacks.test_checkpoint_and_resume import Noise, run, shuffled
from tfdist import HierarchicalStrategy

class Tell(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print("step", flush=True)
        time.sleep(0.02)

strategy = HierarchicalStrategy()
settings = {{"every_steps": 3}}
model, _ = run(sys.argv[1], {EPOCHS}, Noise(), Tell(), data=lambda: shuffled(6), strategy=strategy, settings=settings)
if strategy.is_chief:
    np.savez(sys.argv[2], *model.get_weights())
"""


def start(layout: Layout, folder: pathlib.Path, name: str, after_steps: int | None, then_s: float = 0.0) -> bool:
    """Runs the script once; all of its processes are killed at a moment, unless that is None.

    Args:
        layout: Its processes.
        folder: For its files.
        name: Of its checkpoints, and of the weights at the end.
        after_steps: The steps of all processes together before the moment.
        then_s: How much later it is.

    Returns:
        Whether it came to its end.
    """
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    command = [*launch_command(layout), sys.executable, str(script), str(folder / name), str(folder / f"{name}.npz")]
    with open(folder / "errors.log", "ab") as errors:
        pipes = {"stdout": subprocess.PIPE, "stderr": errors, "stdin": subprocess.DEVNULL}
        with subprocess.Popen(command, env=launch_environ(folder), start_new_session=True, cwd=folder, **pipes) as process:
            seen = 0
            while (after_steps is None or seen < after_steps) and (line := process.stdout.readline()):
                seen += b"step" in line
            if seen == after_steps:
                time.sleep(then_s)
                _kill_all(process.pid)
            return process.wait() == 0


def weights_differ(folder: pathlib.Path, one: str, other: str) -> list[str]:
    """The weights of two runs that are not the same to the bit."""
    with np.load(folder / f"{one}.npz") as mine, np.load(folder / f"{other}.npz") as theirs:
        return [name for name in mine.files if not np.array_equal(mine[name], theirs[name])]


def _kill_all(pid: int) -> None:
    """Kills a process and all that it has started, before any of them can tell another."""
    found = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    for each in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            os.kill(each.pid, signal.SIGKILL)
    psutil.wait_procs(found[1:], timeout=20)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Kills training at many moments, and compares its end with that of an undisturbed run."
    )
    parser.add_argument("--moments", type=int, default=8, help="for each layout")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    failed = 0
    for layout in (Layout(1), Layout(2, 1, "mpi"), Layout(2, 1, "horovod")):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            if not start(layout, folder, "whole", None):
                raise RuntimeError(f"{layout}: the undisturbed run failed:\n{(folder / 'errors.log').read_text()[-2000:]}")
            for moment in range(options.moments):
                # Each run is killed up to three times, in steps and while files are written.
                kills = [
                    (int(rng.integers(1, EPOCHS * STEPS * layout.processes // 2)), rng.uniform(0, 0.06))
                    for _ in range(moment % 3 + 1)
                ]
                ended = [start(layout, folder, f"run{moment}", *kill) for kill in kills]
                if not any(ended):
                    start(layout, folder, f"run{moment}", None)
                wrong = weights_differ(folder, "whole", f"run{moment}")
                failed += bool(wrong)
                print(f"{layout}  killed at {[steps for steps, _ in kills]} steps: {wrong or 'the same weights'}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
