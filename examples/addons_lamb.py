"""Trains a small network on MNIST with tensorflow-addons' LAMB and its progress bar, on the addons stack.

    python examples/addons_lamb.py
    tfdist run -np 2 examples/addons_lamb.py

About 10 seconds on two cores; ends with a test accuracy of at least 0.9. tensorflow-addons needs TensorFlow 2.15 and Keras 2.
"""

from __future__ import annotations

import keras
import tensorflow_addons as tfa
from images import load_images

import tfdist


def main() -> None:
    strategy = tfdist.HierarchicalStrategy()
    keras.utils.set_random_seed(0)
    train, test = load_images()
    with strategy.scope():
        layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10, activation="softmax")]
        model = keras.Sequential([keras.Input((784,)), *layers])
        model.compile(tfa.optimizers.LAMB(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
    bars = [tfa.callbacks.TQDMProgressBar()] if strategy.is_chief else []
    model.fit(*train, batch_size=128, epochs=15, verbose=0, callbacks=bars)
    accuracy = model.evaluate(*test, verbose=0)[1]
    if strategy.is_chief:
        print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
