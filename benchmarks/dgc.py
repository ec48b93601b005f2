"""What does deep gradient compression save on a thin link?

    sudo python benchmarks/dgc.py               # about 5 minutes
    sudo python benchmarks/dgc.py --rounds 1

Two test hosts on this machine (network namespaces, tests/netlab.py) at 100 Mbit/s, two replicas each, ResNet-50's 161 gradients,
102.2 MB. A step is the sum and the update of the weights; for Horovod the sum alone. Sides:

    dgc-mpi              DGC at 99.9 %, no ramp, the default strategy under mpirun
    dgc-mpi-fp16         the same with values="float16", and compression="fp16" for what is sent whole
    dgc-horovod-fp16     the same under horovodrun
    horovod              dense float32, called the usual way: one process a replica, one allreduce a gradient

The sides take turns. Prints medians and bytes that leave a host. Writes results/dgc.json and .png.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import allreduce
import common

from tests.netlab import Lab
from tests.netlab import why_not

SIDES = ("dgc-mpi", "dgc-mpi-fp16", "dgc-horovod-fp16", "horovod")
RATE_MBIT = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Times DGC between two test hosts.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        allreduce.time_steps(make_step(options.worker))
        return
    if why_not():
        sys.exit(f"This benchmark cannot run here: {why_not()}.")
    found: dict[str, dict[str, list[float]]] = {side: {"times_s": [], "sent_bytes": []} for side in SIDES}
    with Lab(allreduce.HOSTS, RATE_MBIT) as lab:
        for _ in range(options.rounds):
            for side in SIDES:
                output = lab.run(allreduce.command(lab, side, __file__), 600, allreduce.environ(lab))
                line = next(line for line in output.splitlines() if "RESULT " in line)
                for name, values in json.loads(line[line.index("RESULT ") + 7 :]).items():
                    found[side][name] += values
    report(found)


def report(found: dict[str, dict[str, list[float]]]) -> None:
    dense_bytes = allreduce.gradient_bytes() * 2 * (allreduce.HOSTS - 1) / allreduce.HOSTS
    medians_s = {side: statistics.median(values["times_s"]) for side, values in found.items()}
    for side, values in found.items():
        sent_bytes = statistics.median(values["sent_bytes"])
        print(
            f"{side:18} {medians_s[side]:7.3f} s (median of {len(values['times_s'])}), "
            f"{medians_s['horovod'] / medians_s[side]:5.1f} x faster than horovod, "
            f"{sent_bytes / 1e3:9.0f} KB a host, 1/{dense_bytes / sent_bytes:.0f} of dense"
        )
    path = common.write("dgc", {"rate_mbit": RATE_MBIT, "dense_bytes": dense_bytes, "sides": found})
    common.draw_bars(path, "A step with ResNet-50's gradients, 2 hosts x 2 replicas", "seconds", {"100 Mbit/s": medians_s})


def make_step(side):
    if side == "horovod":
        return side, allreduce.horovod
    half = side.endswith("fp16")

    def make(tf):
        import tfdist

        strategy = tfdist.HierarchicalStrategy(compression="fp16" if half else None)
        shapes = common.resnet50_shapes()
        with strategy.scope():
            gradients = [tf.Variable(tf.random.stateless_normal(shape, (1, 2)), trainable=False) for shape in shapes]
            weights = [tf.Variable(tf.zeros(shape)) for shape in shapes]
            optimizer = tfdist.optimizers.DGC(0.001, rampup=(), values="float16" if half else "float32")
            optimizer.build(weights)

        def replica():
            optimizer.apply_gradients([(g.read_value(), w) for g, w in zip(gradients, weights, strict=True)])

        step = tf.function(lambda: strategy.run(replica))
        return step, allreduce.replicated_barrier(tf, strategy), strategy.rank

    return side, make


if __name__ == "__main__":
    main()
