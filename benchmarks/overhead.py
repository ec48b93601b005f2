"""What does the strategy cost where there is nothing to distribute?

    python benchmarks/overhead.py

Times a step of `fit` of examples/mnist.py's model with one process and one device, with the strategy and without, alternating
in one run, and prints the ratio of the medians. At most 1.05 is wanted. Writes benchmarks/results/overhead.json and .png.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys

import keras
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "examples"))

import common
import mnist

import tfdist
from tfdist.callbacks import StepTime

REPEATS = 9
EPOCHS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description="Times a step of fit with the strategy and without.")
    parser.add_argument("--batch-size", type=int, default=64)
    options = argparse.Namespace(**vars(parser.parse_args()), epochs=EPOCHS, rate=0.003)
    train, _ = mnist.load_images()
    sides = {"strategy": tfdist.HierarchicalStrategy().scope, "plain": tf.distribute.get_strategy().scope}
    models = {}
    for side, scope in sides.items():
        with scope():
            models[side] = mnist.build_model(keras, options)
    times_ms: dict[str, list[float]] = {side: [] for side in models}
    for repeat in range(REPEATS + 1):
        # Alternating, and in turn first, so that neither has the machine's better moments.
        for side in sorted(models, reverse=bool(repeat % 2)):
            history = models[side].fit(*train, batch_size=options.batch_size, epochs=EPOCHS, verbose=0, callbacks=[StepTime()])
            if repeat:
                times_ms[side].append(1000 * statistics.median(history.history["step_time_s"]))
    medians_ms = {side: statistics.median(times) for side, times in times_ms.items()}
    ratio = medians_ms["strategy"] / medians_ms["plain"]
    print(f"median step: strategy {medians_ms['strategy']:.3f} ms, plain {medians_ms['plain']:.3f} ms, ratio {ratio:.3f}")
    results = {"times_ms": times_ms, "medians_ms": medians_ms, "ratio": ratio}
    plot(results, common.write("overhead", results))


def plot(results: dict, path: pathlib.Path) -> None:
    """Draws each repeat's median step time, of both sides."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    for side, times_ms in results["times_ms"].items():
        panel.plot(range(1, len(times_ms) + 1), times_ms, marker="o", label=side)
    panel.set(xlabel="repeat", ylabel="median step, ms", ylim=0, title=f"One process, one device: ratio {results['ratio']:.3f}")
    panel.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
