"""Examples in docstrings run."""

import doctest
import importlib
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist

ROOT = pathlib.Path(__file__).parent.parent
FILES = [path.relative_to(ROOT) for folder in ("tfdist", "callbacks") for path in sorted((ROOT / folder).rglob("*.py"))]
MODULES = [
    ".".join(path.with_suffix("").parts).replace("callbacks", "tfdist.callbacks", 1)
    for path in FILES
    if ">>>" in (ROOT / path).read_text()
]


def test_examples_are_found():
    assert {"tfdist.strategy", "tfdist.optimizers.lars", "tfdist.callbacks.step_time"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    extra = {"keras": keras, "np": np, "tf": tf, "tfdist": tfdist, "model": model, "x": np.ones((8, 1)), "y": np.ones((8, 1))}
    results = doctest.testmod(importlib.import_module(name), extraglobs=extra)
    assert results.attempted > 0
    assert results.failed == 0
