"""How fast are a model's gradients summed between two hosts?

    sudo python benchmarks/allreduce.py                          # all rates, about 20 minutes
    sudo python benchmarks/allreduce.py --rates 1000 --rounds 2

Two test hosts on this machine (network namespaces, tests/netlab.py), two replicas each, ResNet-50's 161 gradients, 102.2 MB. Sides:

    tfdist-mpi         one process a host with two devices; the default strategy under mpirun
    tfdist-mpi-fp16    the same with compression="fp16"
    tfdist-horovod     the same as the first under horovodrun
    horovod            called the usual way: one process a replica, one allreduce a gradient, Horovod's own settings
    multiworker        tf.distribute.MultiWorkerMirroredStrategy in a custom loop, one process a host with two devices

The sides take turns: each round starts each side once, and times a few steps after one that warms up. Printed are medians, bytes
that leave a host, and the ratio to the wire's bound, 2 (H - 1) / H * bytes / rate. Writes results/allreduce.json and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import common

from tests.netlab import Lab
from tests.netlab import why_not

SIDES = ("tfdist-mpi", "tfdist-mpi-fp16", "tfdist-horovod", "horovod", "multiworker")
HOSTS, REPLICAS = 2, 2
STEPS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Times the sum of ResNet-50's gradients between two test hosts.")
    parser.add_argument("--rates", type=float, nargs="*", default=[1000, 100, 0], help="10^6 bits a second; 0: unshaped")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=SIDES)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
        return
    if why_not():
        sys.exit(f"This benchmark cannot run here: {why_not()}.")
    results = {"gradient_bytes": gradient_bytes(), "rates": [measure(rate, options) for rate in options.rates]}
    plot(results, common.write("allreduce", results))


def gradient_bytes() -> int:
    return 4 * sum(_length(shape) for shape in common.resnet50_shapes())


def measure(rate_mbit: float, options: argparse.Namespace) -> dict:
    """Runs all sides in turn at one rate."""
    found: dict[str, dict[str, list[float]]] = {side: {"times_s": [], "sent_bytes": []} for side in options.sides}
    with Lab(HOSTS, rate_mbit or None) as lab:
        for _ in range(options.rounds):
            for side in options.sides:
                output = lab.run(command(lab, side), 600, environ(lab))
                line = next(line for line in output.splitlines() if "RESULT " in line)
                result = json.loads(line[line.index("RESULT ") + 7 :])
                for name, values in result.items():
                    found[side][name] += values
    bound_s = 2 * (HOSTS - 1) / HOSTS * gradient_bytes() / (rate_mbit * 1e6 / 8) if rate_mbit else None
    report(rate_mbit, found, bound_s)
    return {"rate_mbit": rate_mbit or None, "bound_s": bound_s, "sides": found}


def report(rate_mbit: float, found: dict, bound_s: float | None) -> None:
    print(f"{rate_mbit:g} Mbit/s" if rate_mbit else "unshaped", f"(the wire's bound: {bound_s:.3f} s)" if bound_s else "")
    first = statistics.median(next(iter(found.values()))["times_s"])
    for side, values in found.items():
        median_s = statistics.median(values["times_s"])
        bound = f", {median_s / bound_s:.3f} x the bound" if bound_s else ""
        sent_mb = statistics.median(values["sent_bytes"]) / 1e6
        count = len(values["times_s"])
        compared = f"{median_s / first:5.2f} x the first{bound}, {sent_mb:.1f} MB a host"
        print(f"  {side:16} {median_s:7.3f} s (median of {count}), {compared}", flush=True)


def command(lab: Lab, side: str, script: str = __file__) -> list[str]:
    per_host = REPLICAS if side == "horovod" else 1
    worker = [sys.executable, script, "--worker", side]
    if "horovod" in side:
        return ["horovodrun", *lab.horovodrun_options(per_host), *worker]
    return ["mpirun", *lab.mpirun_options(per_host), "-x", "LAB_HOSTS", *worker]


def environ(lab: Lab) -> dict[str, str]:
    return {
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{lab.environ()['PATH']}",
        "LAB_HOSTS": ",".join(lab.hosts),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }


# On the hosts ---------------------------------------------------------------------------------------------------------------


def work(side: str) -> None:
    makers = {"horovod": horovod, "multiworker": multiworker, "tfdist-mpi-fp16": tfdist_fp16}
    time_steps((side, makers.get(side, tfdist_plain)))


def time_steps(side_and_maker: tuple) -> None:
    """Times some steps of one side; rank 0 prints them."""
    import tensorflow as tf

    side, make = side_and_maker
    devices = 1 if side == "horovod" else REPLICAS
    configurations = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], configurations)
    step, barrier, rank = make(tf)
    step()
    times_s, sent_bytes = [], []
    barrier()
    # One step follows the other, as in training: after a barrier, ranks would begin at different times.
    for _ in range(STEPS):
        sent, begin = _sent_bytes(), time.perf_counter()
        step()
        times_s.append(time.perf_counter() - begin)
        sent_bytes.append(_sent_bytes() - sent)
    if rank == 0:
        print("RESULT", json.dumps({"times_s": times_s, "sent_bytes": sent_bytes}), flush=True)
    barrier()


def tfdist_plain(tf, compression=None):
    import tfdist

    strategy = tfdist.HierarchicalStrategy(compression=compression)
    return replicated_step(tf, strategy), replicated_barrier(tf, strategy), strategy.rank


def tfdist_fp16(tf):
    return tfdist_plain(tf, "fp16")


def multiworker(tf):
    hosts = os.environ["LAB_HOSTS"].split(",")
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    cluster = {"worker": [f"{host}:23456" for host in hosts]}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": rank}})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    return replicated_step(tf, strategy), replicated_barrier(tf, strategy), rank


def replicated_barrier(tf, strategy):
    return tf.function(lambda: strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.zeros([1]))))


def replicated_step(tf, strategy):
    """A step in which each replica has gradients of its own, and sums them as an optimizer does.

    Like a training step it gives Python one number, which needs all sums: to hand over 322 tensors takes several milliseconds.
    """
    with strategy.scope():
        gradients = [tf.Variable(tf.random.stateless_normal(s, (1, 2)), trainable=False) for s in common.resnet50_shapes()]

    def replica():
        sums = tf.distribute.get_replica_context().all_reduce("SUM", [gradient.read_value() for gradient in gradients])
        return use(tf, sums)

    return tf.function(lambda: strategy.run(replica))


def use(tf, sums):
    """A number that can be told only when all sums are there."""
    return tf.add_n([tf.reshape(total, [-1])[0] for total in sums])


def horovod(tf):
    import horovod.tensorflow as hvd

    hvd.init()
    gradients = [tf.Variable(tf.random.stateless_normal(shape, (1, 2)), trainable=False) for shape in common.resnet50_shapes()]

    @tf.function
    def traced():
        return use(tf, [hvd.allreduce(g.read_value(), op=hvd.Sum, name=f"gradient.{i}") for i, g in enumerate(gradients)])

    return traced, lambda: hvd.allreduce(tf.zeros([1]), name="barrier").numpy(), hvd.rank()


def _sent_bytes() -> int:
    return int(pathlib.Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


def _length(shape: tuple[int, ...]) -> int:
    length = 1
    for size in shape:
        length *= size
    return length


def plot(results: dict, path: pathlib.Path) -> None:
    names = [f"{rate['rate_mbit']:g} Mbit/s" if rate["rate_mbit"] else "unshaped" for rate in results["rates"]]
    panels, marks = {}, {}
    for name, rate in zip(names, results["rates"], strict=True):
        panels[name] = {side: statistics.median(values["times_s"]) for side, values in rate["sides"].items()}
        if rate["bound_s"]:
            marks[name] = rate["bound_s"]
    common.draw_bars(path, "Sum of ResNet-50's gradients, 2 hosts x 2 replicas", "seconds", panels, marks)


if __name__ == "__main__":
    main()
