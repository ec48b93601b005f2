"""Does the cost model predict what is measured?

    sudo python benchmarks/cost_model.py

Two test hosts with two processes each, at 1 Gbit/s. The constants are measured as `tfdist plan` and algorithm="auto" do; then
each plan is timed at 1, 10 and 100 MB. Prints predicted over measured; within 20 % is wanted for ring, halving_doubling and
hierarchical. Writes results/cost_model.json and .png.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import allreduce
import common

from tests.netlab import Lab
from tests.netlab import why_not

SIZES_BYTES = (10**6, 10**7, 10**8)
REPEATS = 7
RATE_MBIT = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares predicted and measured times of plans between two test hosts.")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().worker:
        work()
        return
    if why_not():
        sys.exit(f"This benchmark cannot run here: {why_not()}.")
    with Lab(2, RATE_MBIT) as lab:
        command = ["mpirun", *lab.mpirun_options(2), sys.executable, __file__, "--worker"]
        output = lab.run(command, 300, allreduce.environ(lab))
    line = next(line for line in output.splitlines() if "RESULT " in line)
    results = json.loads(line[line.index("RESULT ") + 7 :])
    for row in results["rows"]:
        row["ratio"] = row["predicted_s"] / row["measured_s"]
        print(
            f"{row['size_bytes'] / 1e6:5g} MB  {row['algorithm']:20} predicted {1000 * row['predicted_s']:8.2f} ms, "
            f"measured {1000 * row['measured_s']:8.2f} ms, ratio {row['ratio']:.3f}"
        )
    plot(results, common.write("cost_model", results, threads="one a process"))


def work() -> None:
    from tfdist.collectives.algorithms import PLANS
    from tfdist.collectives.choice import predict_s
    from tfdist.collectives.measure import measure_network
    from tfdist.collectives.plan_runner import PlanRunner
    from tfdist.communicators import create_communicator
    from tfdist.topology import Topology

    communicator = create_communicator("mpi")
    topology = Topology(communicator.gather_host_names(), (1,) * communicator.size)
    network = measure_network(communicator, topology)
    runner = PlanRunner(communicator.transport)
    rows = []
    for size_bytes in SIZES_BYTES:
        array = np.zeros(size_bytes // 4, np.float32)
        for name, predicted_s in predict_s(topology.groups, size_bytes, network).items():
            rounds, times_s = runner.compile(PLANS[name](topology.groups, array.size), 4), []
            for _ in range(REPEATS):
                communicator.gather_array(np.zeros(1, np.int64))
                begin = time.perf_counter()
                runner.run(rounds, array)
                times_s.append(time.perf_counter() - begin)
            measured_s = float(communicator.gather_array(np.array([statistics.median(times_s)])).max())
            rows.append({"size_bytes": size_bytes, "algorithm": name, "predicted_s": predicted_s, "measured_s": measured_s})
    if communicator.rank == 0:
        print("RESULT", json.dumps({"network": network.to_dict(), "rows": rows}), flush=True)


def plot(results: dict, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(5, 4.5), layout="constrained")
    for name in dict.fromkeys(row["algorithm"] for row in results["rows"]):
        rows = [row for row in results["rows"] if row["algorithm"] == name]
        panel.loglog([row["measured_s"] for row in rows], [row["predicted_s"] for row in rows], "o", label=name, alpha=0.7)
    ends = [0.005, 2]
    panel.loglog(ends, ends, color="black", linewidth=0.8)
    panel.fill_between(ends, [0.8 * end for end in ends], [1.2 * end for end in ends], alpha=0.2, label="within 20 %")
    panel.set(xlabel="measured, s", ylabel="predicted, s", title="2 hosts x 2 processes, 1 Gbit/s")
    panel.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
