"""What is made even between stages."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _keras
from tfdist.pipeline.partition import partition

_BATCH, _REPEATS = 32, 5


def stage_starts(model: Any, stages: int, balance: str | Sequence[int]) -> list[int]:
    """The first layer of each stage.

    Args:
        model: A Sequential or Functional model.
        stages: How many.
        balance: "time", "parameters", or the number of layers of each stage.
    """
    calls = _keras.layer_calls(model)
    if not isinstance(balance, str):
        if len(balance) != stages or sum(balance) != len(calls) or min(balance) < 1:
            raise ValueError(
                f"`balance` must be a number of layers, 1 or more, for each of {stages} stages, {len(calls)} together. Received: "
                f"balance={list(balance)}."
            )
        return [0, *itertools.accumulate(balance[:-1])]
    if balance == "parameters":
        return partition([float(call.layer.count_params()) for call in calls], stages)
    if balance == "time":
        return partition([_seconds(call) for call in calls], stages)
    raise ValueError(f'`balance` must be "time", "parameters" or a list. Received: balance={balance!r}.')


def _seconds(call: _keras.LayerCall) -> float:
    """The median time of a forward and a backward pass of one layer."""
    import keras

    part = keras.Model(call.inputs, call.outputs)
    given = [_sample(tensor) for tensor in call.inputs]

    @tf.function
    def step(inputs: list[Any]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([each for each in inputs if each.dtype.is_floating])
            outputs = part(inputs if len(inputs) > 1 else inputs[0], training=True)
            total = tf.add_n([tf.reduce_sum(tf.cast(each, tf.float32)) for each in tf.nest.flatten(outputs)])
        wanted = [*(each for each in inputs if each.dtype.is_floating), *map(_keras.unwrap, part.trainable_variables)]
        return [g for g in tape.gradient(total, wanted) if g is not None]

    def run() -> float:
        start_s = time.perf_counter()
        step(given)
        return time.perf_counter() - start_s

    run()
    return statistics.median(run() for _ in range(_REPEATS))


def _sample(tensor: Any) -> Any:
    if None in tensor.shape[1:]:
        raise ValueError(
            'Layers of unknown shapes cannot be timed: give balance="parameters" or a list. Received: '
            f"an input of shape {tuple(tensor.shape)}."
        )
    values = np.random.default_rng(0).uniform(0, 1, (_BATCH, *tensor.shape[1:]))
    return tf.constant(values.astype(tf.as_dtype(tensor.dtype).as_numpy_dtype))
