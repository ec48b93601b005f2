"""Does sending overlap the backward pass?

    sudo python benchmarks/overlap.py

Two test hosts with one process each at 100 Mbit/s train a model of dense layers by `fit`, with a batch whose backward pass takes
as long as the sum of its gradients. (At 1 Gbit/s both hosts' network needs a good part of the 2 cores that both compute on.)
Three things are timed on both hosts at once: compute (each host trains alone), wire (the gradients are summed and nothing else),
and a step of both. Compute and step take turns. At most 1.15 x max(compute, wire) is wanted. Writes results/overlap.json and .png.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import allreduce
import common

from tests.netlab import Lab
from tests.netlab import why_not

RATE_MBIT = 100
LAYERS, UNITS = 10, 512
STEPS, ROUNDS = 3, 7


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a step of fit against its compute and its all-reduce.")
    parser.add_argument("--engine", choices=["mpi", "horovod"], default="mpi")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    if why_not():
        sys.exit(f"This benchmark cannot run here: {why_not()}.")
    with Lab(2, RATE_MBIT) as lab:
        start = ["mpirun", *lab.mpirun_options(1)] if options.engine == "mpi" else ["horovodrun", *lab.horovodrun_options(1)]
        output = lab.run([*start, sys.executable, __file__, "--worker"], 900, allreduce.environ(lab))
    line = next(line for line in output.splitlines() if "RESULT " in line)
    results = json.loads(line[line.index("RESULT ") + 7 :])
    medians_s = {name: statistics.median(times_s) for name, times_s in results["times_s"].items()}
    results["ratio"] = medians_s["step"] / max(medians_s["compute"], medians_s["wire"])
    times = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in medians_s.items())
    serial_s = medians_s["compute"] + medians_s["wire"]
    print(f"{times} (batch {results['batch_size']} a host, backward {1000 * results['backward_s']:.0f} ms)")
    print(f"step / max(compute, wire) = {results['ratio']:.3f}; one after the other: {1000 * serial_s:.0f} ms")
    path = common.write("overlap", {"engine": options.engine, **results})
    title = f"A step of fit, 2 hosts at {RATE_MBIT} Mbit/s"
    panels = {f"{results['ratio']:.2f} x max(compute, wire)": {name: 1000 * value for name, value in medians_s.items()}}
    common.draw_bars(path, title, "ms", panels)


def work() -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tfdist.callbacks import StepTime

    together, alone = tfdist.HierarchicalStrategy(), tfdist.HierarchicalStrategy(communicator="local")

    def build():
        layers = [keras.layers.Dense(UNITS, activation="relu") for _ in range(LAYERS)]
        model = keras.Sequential([keras.Input((UNITS,)), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e-6), "mse")
        return model

    def fit_s(model, rows: int) -> float:
        x, y = np.ones((rows * STEPS, UNITS), "float32"), np.ones((rows * STEPS, 1), "float32")
        return statistics.median(
            model.fit(x, y, batch_size=rows, verbose=0, shuffle=False, callbacks=[StepTime()]).history["step_time_s"]
        )

    def forward_s(model, rows: int) -> float:
        x = tf.ones((rows, UNITS))
        forward = tf.function(lambda: model(x, training=True))
        forward()
        begin = time.perf_counter()
        for _ in range(STEPS):
            forward()
        return (time.perf_counter() - begin) / STEPS

    with together.scope():
        distributed = build()
    with alone.scope():
        local = build()
    gradients = [tf.Variable(tf.ones(variable.shape), trainable=False) for variable in local.trainable_variables]
    sum_gradients = tf.function(
        lambda: together.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", [g.read_value() for g in gradients]))
    )

    def wire_s() -> float:
        begin = time.perf_counter()
        sum_gradients()
        return time.perf_counter() - begin

    def agreed(value: float) -> float:
        return float(together._communicator.gather_array(np.array([value])).mean())

    wire_s()
    wire = agreed(statistics.median(wire_s() for _ in range(5)))
    rows = 256
    for _ in range(5):
        fit_s(local, rows)
        backward = agreed(fit_s(local, rows) - forward_s(local, rows))
        if abs(backward / wire - 1) < 0.1:
            break
        rows = max(16, round(rows * wire / backward / 16) * 16)
    times_s: dict[str, list[float]] = {"compute": [], "wire": [], "step": []}
    for number in range(ROUNDS + 1):
        measured = {"compute": agreed(fit_s(local, rows)), "wire": agreed(wire_s()), "step": agreed(fit_s(distributed, 2 * rows))}
        if number:
            for name, value in measured.items():
                times_s[name].append(value)
    if together.rank == 0:
        print("RESULT", json.dumps({"batch_size": rows, "backward_s": backward, "times_s": times_s}), flush=True)


if __name__ == "__main__":
    main()
