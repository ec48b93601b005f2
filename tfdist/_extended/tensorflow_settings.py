"""What a strategy sets for the whole process."""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.eager import context


def keep_order_of_arithmetic() -> None:
    """Turns off TensorFlow's rewriting of arithmetic, unless the user has chosen.

    It groups operands in another order in each process, for the same graph. So a norm, or a rate for each layer, may differ in the
    last bit from rank to rank, and the weights drift apart.
    """
    if "arithmetic_optimization" not in tf.config.optimizer.get_experimental_options():
        tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})


def share_seed(seed: int) -> None:
    """Sets TensorFlow's global seed unless the user has, so that all ranks shuffle alike."""
    if context.global_seed() is None:
        tf.random.set_seed(seed)


def global_seed() -> int | None:
    """TensorFlow's global seed."""
    seed: int | None = context.global_seed()
    return seed
