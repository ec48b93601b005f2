"""How much faster is a pipeline of 2 stages than one device, and what do its weights take?

    python benchmarks/pipeline.py              about 5 minutes

Speed: 8 equal layers on one device with one thread, and as 2 stages on 2 devices with one thread each, by each schedule with the
same batches, alternating in one run; prints the median of 9 rates, and the ratio to one device. At least 1.7 is wanted of
"spectrain". Memory: 4 stages; prints the copies of weights that wait for a backward pass, and what the process takes at the most,
also against "stale". Writes benchmarks/results/pipeline.json and .png.

Datasets are not tuned by tf.data: its tuning thread, where it happens to sleep, holds up the end of an epoch, on both sides.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

import common
import keras
import numpy as np
import tensorflow as tf

from tfdist.pipeline import PipelineModel

REPEATS, STEPS, STEPS_AT_ONCE = 9, 40, 20
LAYERS, WIDTH, BATCH = 8, 1024, 128
ONE = "one device"
MEMORY = ("weight_bytes", "waiting_bytes", "peak_bytes")
SCHEDULES = ("spectrain", "stale", "stash", "gpipe")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", help="what a process that this script starts does")
    parser.add_argument("--stages", type=int, default=2)
    options = parser.parse_args()
    if options.side:
        serve(options.side, options.stages)
        return
    rates = measure_speed()
    memory = {schedule: measure_memory(schedule) for schedule in SCHEDULES[:3]}
    medians = {side: statistics.median(found) for side, found in rates.items()}
    ratios = {side: median / medians[ONE] for side, median in medians.items()}
    for side, median in medians.items():
        print(f"{side:12} {median:7.0f} rows/s, {ratios[side]:.2f} of one device")
    for schedule, found in memory.items():
        weights, waiting, peak = (found[name] / 2**20 for name in MEMORY)
        above = peak - memory["stale"]["peak_bytes"] / 2**20
        print(
            f"{schedule:12} weights {weights:.0f} MiB, waiting copies {waiting:.0f}, process {peak:.0f}, {above:+.0f} against stale"
        )
    results = {"rows_per_s": rates, "medians": medians, "ratios": ratios, "memory_of_4_stages": memory}
    path = common.write("pipeline", results, "one a device: intra-op 1, inter-op as many as devices")
    title = f"2 stages, batch {BATCH}: {ratios['spectrain']:.2f} x one device"
    common.draw_bars(path, title, "rows a second", {"one thread a device": medians})


def measure_speed() -> dict[str, list[float]]:
    """Rows a second of each side; processes take turns, an epoch each."""
    workers = {side: start(side, 1 if side == ONE else 2) for side in (ONE, *SCHEDULES)}
    rates: dict[str, list[float]] = {side: [] for side in workers}
    try:
        for worker in workers.values():
            worker.stdout.readline()  # it is ready
        for repeat in range(REPEATS):
            for side in sorted(workers, reverse=bool(repeat % 2)):
                rates[side].append(float(ask(workers[side])))
    finally:
        for worker in workers.values():
            worker.kill()
            worker.wait()
    return rates


def measure_memory(schedule: str) -> dict[str, float]:
    """What a process of four stages takes."""
    worker = start(schedule, 4)
    try:
        worker.stdout.readline()
        ask(worker)
        return dict(zip(MEMORY, map(float, ask(worker, "memory").split()), strict=True))
    finally:
        worker.kill()
        worker.wait()


def start(side: str, stages: int) -> subprocess.Popen:
    command = [sys.executable, __file__, "--side", side, "--stages", str(stages)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(worker: subprocess.Popen, what: str = "train") -> str:
    worker.stdin.write(what + "\n")
    worker.stdin.flush()
    return worker.stdout.readline()


def serve(side: str, devices: int) -> None:
    """Trains an epoch for each line that comes in, and prints the rows a second."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(devices)
    logical = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    model, watch = build_model(side, devices), Watch()
    x = np.random.default_rng(0).normal(size=(BATCH * STEPS, WIDTH)).astype("float32")
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset = tf.data.Dataset.from_tensor_slices((x, x)).batch(BATCH).with_options(options)
    model.fit(dataset, epochs=2, shuffle=False, verbose=0)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            weight_bytes = 4 * sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
            print(weight_bytes, watch.waiting_bytes, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
            continue
        model.fit(dataset, epochs=1, shuffle=False, verbose=0, callbacks=[watch])
        print(BATCH * STEPS / watch.epoch_s, flush=True)


class Watch(keras.callbacks.Callback):
    """Times an epoch, and measures the weights that wait for backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting_bytes = self.epoch_s = self._start_s = 0.0

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        self._start_s = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        self.waiting_bytes = max(self.waiting_bytes, getattr(self.model, "waiting_weight_bytes", 0))

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.epoch_s = time.perf_counter() - self._start_s


def build_model(side: str, devices: int) -> keras.Model:
    layers = [keras.layers.Dense(WIDTH, activation="tanh") for _ in range(LAYERS)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    if side != ONE:
        model = PipelineModel(model, devices, side, microbatches=4, balance="parameters")
    steps = STEPS_AT_ONCE if devices <= 2 else 1  # memory is measured round by round
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", steps_per_execution=steps)
    return model


if __name__ == "__main__":
    main()
