"""What holds for every optimizer of ours, in a table."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.optimizers.common import apply
from tests.optimizers.common import some_gradients
from tests.optimizers.common import some_variables
from tests.test_training import assert_equal_on_all_ranks
from tests.test_training import assert_same_training
from tests.test_training import mlp
from tests.test_training import some_data
from tests.test_training import train
from tfdist import HierarchicalStrategy
from tfdist import mixed_precision
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import Blend
from tfdist.optimizers import DGC
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import GradientAccumulation
from tfdist.optimizers import LARS
from tfdist.optimizers import RMSpropToSGD


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


OPTIMIZERS = {
    "LARS": lambda: LARS(0.5, trust_coefficient=0.05),
    "LARS, all arguments": lambda: LARS(
        0.5,
        0.8,
        1e-3,
        0.05,
        1e-6,
        True,
        exclude_from_layer_adaptation=["bias"],
        weight_decay_multipliers={"kernel": 0.5},
        use_ema=True,
        ema_momentum=0.9,
    ),
    "DGC": lambda: DGC(0.05, sparsity=0.5, rampup=(), dense_below=10),
    "DGC, all arguments": lambda: DGC(
        0.05,
        0.8,
        True,
        0.5,
        (0.1, 0.2),
        2,
        global_clipnorm=1.0,
        dense_below=10,
        values="float16",
        weight_decay=1e-3,
        use_ema=True,
    ),
    "DGC without correction": lambda: DGC(0.05, sparsity=0.5, rampup=(), dense_below=10, momentum_correction=False),
    "RMSpropToSGD": lambda: RMSpropToSGD(0.1, 0.8, 1e-3, 0.9, 1e-6),
    "Blend": lambda: Blend(sgd(), keras.optimizers.Adam(0.01)),
    "GlobalClip": lambda: GlobalClip(sgd(), global_clipnorm=0.1),
    "GradientAccumulation": lambda: GradientAccumulation(sgd(), 2),
    "all at once": lambda: LossScaleOptimizer(GradientAccumulation(GlobalClip(LARS(0.1), clipnorm=0.1), 2)),
    "LossScaleOptimizer": lambda: LossScaleOptimizer(sgd(), 1024.0, 3, min_scale=2.0, max_skipped_steps=7),
}


def state(optimizer):
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    return [np.asarray(v.numpy()) for v in variables]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_config_round_trip(name):
    optimizer = OPTIMIZERS[name]()
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.get_config() == optimizer.get_config()
    by_keras = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert type(by_keras) is type(optimizer)
    assert by_keras.get_config() == optimizer.get_config()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_saving_and_loading_go_on_where_they_were(name, tmp_path):
    data = some_data(rows=40)
    model = mlp()
    model.compile(OPTIMIZERS[name](), "mse")
    model.fit(*data, batch_size=8, shuffle=False, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for mine, other in zip(state(model.optimizer), state(again.optimizer), strict=True):
        np.testing.assert_array_equal(mine, other)
    for each in (model, again):
        each.fit(*data, batch_size=8, shuffle=False, verbose=0)
    for mine, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_traces_once(name):
    variables, optimizer, traces = some_variables(), OPTIMIZERS[name](), []
    optimizer.build(variables)

    @tf.function
    def step(gradients):
        traces.append(None)
        apply(optimizer, gradients, variables)

    for number in range(5):
        step(some_gradients(variables, number))
    assert len(traces) == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rate_that_follows_a_schedule(name):
    optimizer = OPTIMIZERS[name]()
    inner = optimizer
    while hasattr(inner, "inner_optimizer"):
        inner = inner.inner_optimizer
    rate = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.1, 0.0])
    scheduled = type(inner).from_config({**inner.get_config(), "learning_rate": rate})
    variables = some_variables()
    for number in range(4):
        apply(scheduled, some_gradients(variables, number), variables)
    assert np.isfinite(variables[0].numpy()).all()
    assert float(keras.optimizers.schedules.deserialize(scheduled.get_config()["learning_rate"])(2)) == pytest.approx(0.1)


def test_an_optimizer_that_has_trained_elsewhere_is_refused():
    optimizer, strategy = sgd(), HierarchicalStrategy()
    apply(optimizer, some_gradients(some_variables(), 0), some_variables())
    with strategy.scope():
        model = mlp()
        model.compile(optimizer, "mse")
    with pytest.raises(ValueError, match="Make a new one for this strategy. Received: SGD, built elsewhere"):
        model.fit(*some_data(), verbose=0)


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"), Layout(2, 1, "horovod"))
def test_equal_to_one_process():
    strategy = HierarchicalStrategy()
    for name, optimizer in OPTIMIZERS.items():
        # With several ranks each has the largest elements of its own, so that only the dense ones are those of one process.
        if name.startswith("DGC") and strategy.size > 1:
            continue
        results = train(
            strategy, mlp, some_data(rows=40), fit={"batch_size": 8, "epochs": 2}, optimizer=optimizer, loss=lambda: "mse"
        )
        assert_same_training(results, 2e-4 if "float16" in str(results[0][0].optimizer.get_config()) else 1e-5)


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"), Layout(2, 1, "horovod"))
def test_learns_in_half_precision_and_is_equal_on_all_ranks():
    strategy = HierarchicalStrategy(compression="fp16")
    mixed_precision.set_global_policy("mixed_float16")
    x, y = some_data(rows=64)
    for name, make in OPTIMIZERS.items():
        optimizer = make()  # outside of the scope, where Keras 3 remembers another strategy
        with strategy.scope():
            model = mlp()
            model.compile(optimizer, "mse")
        history = model.fit(x, y, batch_size=16, epochs=8, shuffle=False, verbose=0).history
        assert type(model.optimizer) is LossScaleOptimizer, name
        assert history["loss"][-1] < history["loss"][0], name
        assert_equal_on_all_ranks(strategy, model.get_weights())
