"""Does the cost model agree with scaling that others published?

    python benchmarks/published_scaling.py

Horovod's documentation (docs/benchmarks.rst) has 128 servers with 4 Pascal GPUs each on 25 Gbit/s RoCE: 90 % of linear scaling
for Inception V3 and ResNet-101, 68 % for VGG-16. Here a step is predicted from constants that are all below, with their sources;
nothing was run on GPUs. Within 10 points is wanted. Writes results/published_scaling.json and .png.
"""

from __future__ import annotations

import argparse
import math
import pathlib

import common

from tfdist.collectives.buckets import plan_buckets
from tfdist.collectives.choice import profile_of
from tfdist.collectives.cost import Link
from tfdist.collectives.cost import Network
from tfdist.collectives.cost import overlapped_s

SERVERS, GPUS = 128, 4
BATCH = 64  # per GPU; Horovod's documentation, and the table of single GPUs
FUSION_BYTES = 64 * 2**20  # HOROVOD_FUSION_THRESHOLD of that time; Horovod's documentation on tensor fusion
BACKWARD = 2 / 3  # of a step: a layer's backward pass makes two products of the size of its forward pass

NETWORK = Network(
    # NCCL's table of base latencies (src/graph/tuning.cc, ring, "simple" protocol): 5.7 us over PCIe, 9.6 us over a network.
    # 16 PCIe 3.0 lanes carry 15.75 GB/s; the ring enters and leaves each GPU by them.
    inside=Link(latency_s=5.7e-6, bytes_per_s=15.75e9),
    # 25 Gbit/s, of which RoCE v2 with packets of 1024 bytes leaves 1024 / 1102 (Ethernet 38, IPv4 20, UDP 8, InfiniBand 12 bytes).
    across=Link(latency_s=9.6e-6, bytes_per_s=25e9 / 8 * 1024 / 1102),
    # A P100 reads two arrays and writes one at 732 GB/s (NVIDIA's data sheet).
    add_bytes_per_s=732e9 / 3,
    chunk_bytes=512 * 1024,  # NCCL's buffer of 4 MiB in 8 slices
)

# Images a second of one P100 with batches of 64, synthetic data, May 2017: TensorFlow's guide, performance/benchmarks. It lacks
# ResNet-101: its time is taken between that of ResNet-50 (219) and ResNet-152 (91.8) by the number of blocks, 33 of 16 and 50.
IMAGES_PER_S = {
    "InceptionV3": 142.0,
    "ResNet101": 1 / (1 / 219 + (33 - 16) / (50 - 16) * (1 / 91.8 - 1 / 219)),
    "VGG16": 154.0,
}
PUBLISHED = {"InceptionV3": 0.90, "ResNet101": 0.90, "VGG16": 0.68}


def main() -> None:
    argparse.ArgumentParser(description="Compares predicted scaling with that of Horovod's documentation.").parse_args()
    rows = {model: predict(model) for model in PUBLISHED}
    for model, row in rows.items():
        times = ", ".join(f"{name} {1000 * row[name + '_s']:.0f} ms" for name in ("compute", "sums", "step"))
        efficiency = f"predicted {100 * row['efficiency']:.1f} %, published {100 * row['published']:.0f} %"
        print(f"{model:12} {row['gradient_bytes'] / 1e6:6.1f} MB, {times}: {efficiency}")
    results = {"servers": SERVERS, "gpus_a_server": GPUS, "network": NETWORK.to_dict(), "models": rows}
    plot(rows, common.write("published_scaling", results, threads="not used"))


def predict(model: str) -> dict[str, float]:
    """The time of a step: the backward pass makes buckets ready one after the other, and they are summed in turn."""
    sizes_bytes, work = layers(model)
    compute_s = BATCH / IMAGES_PER_S[model]
    buckets = plan_buckets(sizes_bytes, ["float32"] * len(sizes_bytes), FUSION_BYTES)
    bucket_bytes = [sum(sizes_bytes[index] for index in bucket) for bucket in buckets]
    # A bucket is ready when the backward pass has reached the first of its layers.
    done = [sum(work[min(bucket) :]) / sum(work) for bucket in buckets]
    ready_s = [compute_s * (1 - BACKWARD + BACKWARD * part) for part in done]
    hosts = tuple(tuple(range(first, first + GPUS)) for first in range(0, SERVERS * GPUS, GPUS))
    times_s = [profile_of("ring", hosts).time_s(size, NETWORK) for size in bucket_bytes]
    step_s = max(compute_s, overlapped_s(ready_s, times_s))
    return {
        "gradient_bytes": sum(sizes_bytes),
        "compute_s": compute_s,
        "sums_s": sum(times_s),
        "step_s": step_s,
        "efficiency": compute_s / step_s,
        "published": PUBLISHED[model],
    }


def layers(model: str) -> tuple[list[int], list[float]]:
    """The size of each gradient, and the multiplications that the layer of each needs for an image."""
    import keras

    built = getattr(keras.applications, model)(weights=None)
    sizes_bytes, work = [], []
    for layer in built.layers:
        for variable in layer.trainable_weights:
            sizes_bytes.append(4 * math.prod(variable.shape))
            positions = math.prod(layer.output.shape[1:-1]) if len(variable.shape) == 4 else 1
            work.append(float(math.prod(variable.shape) * positions if len(variable.shape) > 1 else 0))
    return sizes_bytes, work


def plot(rows: dict[str, dict[str, float]], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    places = range(len(rows))
    panel.bar([place - 0.2 for place in places], [100 * row["published"] for row in rows.values()], 0.4, label="published")
    panel.bar([place + 0.2 for place in places], [100 * row["efficiency"] for row in rows.values()], 0.4, label="predicted")
    panel.set_xticks(list(places), list(rows))
    panel.set(ylabel="% of linear scaling", title=f"{SERVERS} servers x {GPUS} P100, 25 Gbit/s", ylim=(0, 100))
    panel.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
