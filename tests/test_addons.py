"""tensorflow-addons' optimizers and Keras 2's legacy ones, unchanged, under the strategy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import assert_same_training
from tests.test_training import mlp
from tests.test_training import some_data
from tests.test_training import train
from tfdist import _keras
from tfdist import HierarchicalStrategy
from tfdist.optimizers import DGC
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import LARS

pytestmark = pytest.mark.skipif(_keras.KERAS_3, reason="tensorflow-addons and legacy optimizers need the addons stack")


def decoupled(base):
    import tensorflow_addons as tfa

    return tfa.optimizers.extend_with_decoupled_weight_decay(base)


def optimizers():
    import tensorflow_addons as tfa

    legacy = keras.optimizers.legacy
    larsw = decoupled(LARS)
    return {
        "LAMB": lambda: tfa.optimizers.LAMB(0.01),
        "NovoGrad": lambda: tfa.optimizers.NovoGrad(0.01),
        "MovingAverage": lambda: tfa.optimizers.MovingAverage(legacy.SGD(0.1)),
        "LARS": lambda: larsw(0.01, learning_rate=0.5, trust_coefficient=0.05, exclude_from_weight_decay=["bias"]),
        "LARS, clipped": lambda: GlobalClip(larsw(lambda: 0.01, learning_rate=0.5), global_clipnorm=0.1),
        "legacy SGD": lambda: legacy.SGD(0.1, momentum=0.9),
        "legacy Adam": lambda: legacy.Adam(0.01),
    }


def step(optimizer, weights, gradient):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum([tf.reduce_sum(each * gradient) for each in weights])
    optimizer.minimize(loss, weights, tape=tape)


def test_decoupled_decay_of_lars_comes_first_and_replaces_its_own():
    kernel, bias = tf.Variable([[3.0, 4.0]], name="dense/kernel"), tf.Variable([2.0, 0.0], name="dense/bias")
    optimizer = decoupled(LARS)(0.1, learning_rate=1.0, momentum=0.0, trust_coefficient=0.1, exclude_from_weight_decay=["bias"])
    step(optimizer, [kernel, bias], [0.0, 2.0])
    # The norm is 4.5 after the decay, and a step 0.1 of it.
    np.testing.assert_allclose(kernel.numpy(), [[2.7, 3.6 - 0.45]], rtol=1e-6)
    np.testing.assert_allclose(bias.numpy(), [2.0, -2.0], rtol=1e-6)


def test_decoupled_decay_of_dgc():
    kernel = tf.Variable([[3.0, 4.0]], name="dense/kernel")
    step(decoupled(DGC)(0.1, learning_rate=1.0, momentum=0.0), [kernel], [0.0, 2.0])
    np.testing.assert_allclose(kernel.numpy(), [[2.7, 3.6 - 2.0]], rtol=1e-6)


def test_decoupled_decay_follows_a_schedule_and_is_saved():
    decay = keras.optimizers.schedules.PiecewiseConstantDecay([0], [0.5, 0.0])
    optimizer = decoupled(LARS)(decay, learning_rate=0.0)
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    kernel = tf.Variable([[2.0, 4.0]], name="dense/kernel")
    for _ in range(3):
        step(again, [kernel], [1.0, 1.0])
    np.testing.assert_allclose(kernel.numpy(), [[1.0, 2.0]])


def test_what_keras_2_cannot_do_is_refused():
    with pytest.raises(TypeError, match="multiply the loss"):
        decoupled(LARS)(0.1, learning_rate=0.0).minimize(tf.constant(0.0), [], grad_loss=1.0)


@on_ranks(Layout(1, 2), Layout(2, 2, "mpi"), Layout(2, 1, "horovod"))
def test_addons_and_legacy_optimizers():
    import tensorflow_addons as tfa

    strategy = HierarchicalStrategy()
    data = some_data(rows=36)
    common = {"fit": {"batch_size": 12, "epochs": 2}, "loss": lambda: "mse"}
    for optimizer in optimizers().values():
        assert_same_training(train(strategy, mlp, data, optimizer=optimizer, **common))

    def build():
        model = mlp()
        groups = [
            (keras.optimizers.legacy.Adam(0.01), model.layers[0]),
            (keras.optimizers.legacy.SGD(0.1), model.layers[1]),
        ]
        model.grouped = tfa.optimizers.MultiOptimizer(groups)
        return model

    results = []
    for scope in (strategy.scope(), None):
        keras.utils.set_random_seed(1)
        if scope is None:
            model = build()
            model.compile(model.grouped, "mse")
        else:
            with scope:
                model = build()
                model.compile(model.grouped, "mse")
        results.append((model, model.fit(*data, batch_size=12, epochs=2, shuffle=False, verbose=0).history))
    assert_same_training(results)
