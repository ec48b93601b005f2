"""tensorflow-addons' optimizers and Keras 2's legacy ones, unchanged, under the strategy."""

import keras
import pytest

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import assert_same_training
from tests.test_training import mlp
from tests.test_training import some_data
from tests.test_training import train
from tfdist import _keras
from tfdist import HierarchicalStrategy

pytestmark = pytest.mark.skipif(_keras.KERAS_3, reason="tensorflow-addons and legacy optimizers need the addons stack")


def optimizers():
    import tensorflow_addons as tfa

    legacy = keras.optimizers.legacy
    return {
        "LAMB": lambda: tfa.optimizers.LAMB(0.01),
        "NovoGrad": lambda: tfa.optimizers.NovoGrad(0.01),
        "MovingAverage": lambda: tfa.optimizers.MovingAverage(legacy.SGD(0.1)),
        "legacy SGD": lambda: legacy.SGD(0.1, momentum=0.9),
        "legacy Adam": lambda: legacy.Adam(0.01),
    }


@on_ranks(Layout(1, 2), Layout(2, 2, "mpi"), Layout(2, 1, "horovod"))
def test_addons_and_legacy_optimizers():
    import warnings

    with warnings.catch_warnings():  # tensorflow-addons says that it is no longer developed
        warnings.simplefilter("ignore")
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
