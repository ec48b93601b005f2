"""Variables and gradients for tests of optimizers."""

import numpy as np
import tensorflow as tf

SHAPES = {"dense/kernel": (6, 5), "dense/bias": (5,), "head/kernel": (5, 3), "norm/gamma": (3,)}


def some_variables():
    generator = np.random.default_rng(0)
    return [tf.Variable(generator.normal(size=shape).astype("float32"), name=name) for name, shape in SHAPES.items()]


def some_gradients(variables, step):
    generator = np.random.default_rng(step + 1)
    return [tf.constant(generator.normal(size=v.shape).astype("float32")) for v in variables]


def apply(optimizer, gradients, variables):
    """One step, as in a training loop of one's own."""
    optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
