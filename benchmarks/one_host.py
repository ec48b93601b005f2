"""How fast are gradients summed on one host?

    python benchmarks/one_host.py

ResNet-50's 161 gradients, 102.2 MB, in two settings; the sides of each take turns.

    one process, two devices    HierarchicalStrategy, MirroredStrategy's default, and MirroredStrategy with ReductionToOneDevice
    two processes on loopback   tfdist over MPI, and Horovod called the usual way: one allreduce a gradient, its own settings

Prints medians and ratios. Writes results/one_host.json and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import allreduce
import common

STEPS = 9
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the sum of ResNet-50's gradients on one host.")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    results = {"one process": run([sys.executable, __file__, "--worker", "devices"])}
    sides: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for side, launcher in (("tfdist-mpi", ["mpirun", "--oversubscribe", "-np", "2"]), ("horovod", ["horovodrun", "-np", "2"])):
            sides.setdefault(side, []).extend(run([*launcher, sys.executable, __file__, "--worker", side])[side])
    results["two processes"] = sides
    for setting, found in results.items():
        first = statistics.median(next(iter(found.values())))
        print(setting)
        for side, times_s in found.items():
            median_s = statistics.median(times_s)
            print(f"  {side:24} {1000 * median_s:7.1f} ms (median of {len(times_s)}), {median_s / first:5.2f} x the first")
    panels = {
        setting: {side: 1000 * statistics.median(times_s) for side, times_s in found.items()} for setting, found in results.items()
    }
    common.draw_bars(common.write("one_host", results), "Sum of ResNet-50's gradients on one host", "ms", panels)


def run(command: list[str]) -> dict[str, list[float]]:
    environ = {
        **os.environ,
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    output = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=True).stdout
    line = next(line for line in output.splitlines() if "RESULT " in line)
    return json.loads(line[line.index("RESULT ") + 7 :])


def work(side: str) -> None:
    import tensorflow as tf

    devices = 2 if side == "devices" else 1
    configurations = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], configurations)
    rank, barrier, steps = {"devices": one_process, "horovod": horovod, "tfdist-mpi": tfdist_mpi}[side](tf)
    times_s: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(STEPS + 1):
        for name in sorted(steps, reverse=bool(number % 2)):
            barrier()
            begin = time.perf_counter()
            steps[name]()
            if number:
                times_s[name].append(time.perf_counter() - begin)
    if rank == 0:
        print("RESULT", json.dumps({name: times_s[name] for name in steps}), flush=True)
    barrier()


def one_process(tf):
    import tfdist

    names = ["CPU:0", "CPU:1"]
    strategies = {
        "HierarchicalStrategy": tfdist.HierarchicalStrategy(),
        "MirroredStrategy": tf.distribute.MirroredStrategy(names),
        "ReductionToOneDevice": tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice()),
    }
    steps = {name: allreduce.replicated_step(tf, strategy) for name, strategy in strategies.items()}
    return 0, lambda: None, steps


def tfdist_mpi(tf):
    step, barrier, rank = allreduce.tfdist_plain(tf)
    return rank, barrier, {"tfdist-mpi": step}


def horovod(tf):
    step, barrier, rank = allreduce.horovod(tf)
    return rank, barrier, {"horovod": step}


if __name__ == "__main__":
    main()
