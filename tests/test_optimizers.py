"""Every optimizer that Keras has works unchanged under the strategy."""

import keras

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import assert_same_training
from tests.test_training import mlp
from tests.test_training import some_data
from tests.test_training import train
from tfdist import HierarchicalStrategy

NAMES = (
    "SGD",
    "RMSprop",
    "Adagrad",
    "Adadelta",
    "Adam",
    "AdamW",
    "Adamax",
    "Nadam",
    "Ftrl",
    "Lion",
    "Adafactor",
    "Lamb",
    "Muon",
)


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"))
def test_every_keras_optimizer():
    strategy = HierarchicalStrategy()
    data = some_data(rows=24)
    names = [name for name in NAMES if hasattr(keras.optimizers, name)]
    assert len(names) >= 11
    for name in names:
        make = getattr(keras.optimizers, name)
        common = {"fit": {"batch_size": 8, "epochs": 2}, "loss": lambda: "mse"}
        # Some divide by the square root of a gradient near 0, or take its sign: rounding shows.
        tolerance = {"Lion": 2e-3, "Muon": 1e-4, "Adafactor": 1e-4, "Adadelta": 1e-4}.get(name, 1e-5)
        assert_same_training(train(strategy, mlp, data, optimizer=lambda make=make: make(0.001), **common), tolerance)


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"))
def test_averages_constraints_and_clipping_of_values():
    strategy = HierarchicalStrategy()
    data = some_data(rows=24)

    def constrained():
        return mlp(kernel_constraint=keras.constraints.MaxNorm(0.5))

    optimizers = {
        "average": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9),
        "weight decay": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01),
    }
    for optimizer in optimizers.values():
        results = train(strategy, constrained, data, fit={"batch_size": 8, "epochs": 2}, optimizer=optimizer, loss=lambda: "mse")
        assert_same_training(results)
