import keras
import numpy as np
import pytest

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import assert_same_training
from tests.test_training import mlp
from tests.test_training import some_data
from tests.test_training import train
from tfdist import HierarchicalStrategy
from tfdist._keras import KERAS_3
from tfdist.callbacks import GradientNoise
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import DGC
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import GradientAccumulation


def big_model():
    return keras.Sequential([keras.Input((100,)), keras.layers.Dense(200, use_bias=False)])


def moved(model, before):
    return (model.get_weights()[0] - before).ravel()


@pytest.mark.parametrize(
    ("wrap", "batches"),
    [
        (lambda sgd: sgd, 1),
        (lambda sgd: GlobalClip(sgd, clipnorm=1.0), 1),
        (lambda sgd: GradientAccumulation(sgd, 3), 3),
        (lambda sgd: LossScaleOptimizer(sgd, 1024.0), 1),
    ],
    ids=["SGD", "GlobalClip", "GradientAccumulation", "LossScaleOptimizer"],
)
def test_variance_of_one_update(wrap, batches):
    model = big_model()
    model.compile(wrap(keras.optimizers.SGD(1.0)), "mse")
    before = model.get_weights()[0]
    zeros = np.zeros((8 * batches, 100)), np.zeros((8 * batches, 200))
    model.fit(*zeros, batch_size=8, verbose=0, callbacks=[GradientNoise(eta=0.25)])
    delta = moved(model, before)
    # 20,000 draws: the spread of their mean is 0.5 / sqrt(20000), of their deviation 0.5 / sqrt(40000).
    assert abs(delta.mean()) < 0.5 / 20000**0.5 * 4
    assert abs(delta.std() - 0.5) < 0.5 / 40000**0.5 * 4
    # It is gone after fit, and the next fit is another one.
    after = model.get_weights()[0]
    model.fit(*zeros, batch_size=8, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], after)


def test_it_falls_by_the_optimizers_count_and_goes_on():
    def train_for(epochs, parts):
        keras.utils.set_random_seed(1)
        model = big_model()
        model.compile(keras.optimizers.SGD(1.0), "mse")
        zeros, steps = (np.zeros((8, 100)), np.zeros((8, 200))), [model.get_weights()[0]]
        note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(model.get_weights()[0]))
        for _ in range(parts):
            model.fit(*zeros, batch_size=8, epochs=epochs // parts, verbose=0, callbacks=[GradientNoise(1.0, 2.0, seed=7), note])
        return np.diff(np.stack(steps), axis=0)

    whole = train_for(4, 1)
    np.testing.assert_allclose([step.std() for step in whole], [1 / (1 + t) for t in range(4)], rtol=0.03)
    np.testing.assert_allclose(train_for(4, 2), whole, atol=1e-6)
    assert abs(np.corrcoef(whole[0].ravel(), whole[1].ravel())[0, 1]) < 0.05


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has no legacy optimizers")
def test_a_legacy_optimizer_is_refused():
    model = mlp()
    model.compile(keras.optimizers.legacy.SGD(0.1), "mse")
    with pytest.raises(ValueError, match="legacy optimizer cannot be given noise.* Received: SGD"):
        model.fit(*some_data(), verbose=0, callbacks=[GradientNoise()])


def test_wrong_arguments():
    for argument, value in (("eta", -1.0), ("gamma", -0.1), ("seed", 0.5)):
        with pytest.raises(ValueError, match=f"Received: {argument}={value}"):
            GradientNoise(**{argument: value})
    model = mlp()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="one GradientNoise"):
        model.fit(*some_data(), verbose=0, callbacks=[GradientNoise(), GradientNoise()])


def test_after_a_fit_that_was_interrupted():
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise InterruptedError

    model, zeros = big_model(), (np.zeros((8, 100)), np.zeros((8, 200)))
    model.compile(keras.optimizers.SGD(1.0), "mse")
    with pytest.raises(InterruptedError):
        model.fit(*zeros, batch_size=8, verbose=0, callbacks=[GradientNoise(1.0), Interrupt()])
    before = model.get_weights()[0]
    model.fit(*zeros, batch_size=8, verbose=0, callbacks=[GradientNoise(0.25, gamma=0.0)])
    assert abs(moved(model, before).std() - 0.5) < 0.05
    after = model.get_weights()[0]
    model.fit(*zeros, batch_size=8, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], after)


@on_ranks(Layout(1, 2), Layout(2, 2, "mpi"), Layout(2, 1, "horovod"))
def test_the_same_on_every_replica_as_of_one_device():
    strategy = HierarchicalStrategy()
    for optimizer in (
        lambda: keras.optimizers.SGD(0.1),
        lambda: GlobalClip(keras.optimizers.SGD(0.1), clipnorm=1.0),
        lambda: GradientAccumulation(keras.optimizers.SGD(0.1), 2),
        lambda: DGC(0.1, sparsity=0.5, rampup=(), dense_below=10**6),
    ):
        # 43 rows: the replicas' parts differ.
        fit = {"batch_size": 12, "epochs": 2, "callbacks": [GradientNoise(eta=1.0)]}
        results = train(strategy, mlp, some_data(rows=43), fit=fit, optimizer=optimizer, loss=lambda: "mse")
        assert_same_training(results, 1e-5)
