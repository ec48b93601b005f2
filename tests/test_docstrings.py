"""Examples in docstrings run."""

import doctest
import importlib

import keras
import numpy as np
import pytest

import tfdist

MODULES = (
    "tfdist.collectives.buckets",
    "tfdist.communicators",
    "tfdist.data",
    "tfdist.launch",
    "tfdist.settings",
    "tfdist.strategy",
)
MODULES += ("tfdist.topology", "tfdist.callbacks.step_time")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    extra = {"keras": keras, "np": np, "tfdist": tfdist, "model": model, "x": np.ones((8, 1)), "y": np.ones((8, 1))}
    results = doctest.testmod(importlib.import_module(name), extraglobs=extra)
    assert results.attempted > 0
    assert results.failed == 0
