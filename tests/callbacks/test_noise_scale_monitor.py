import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import dense
from tests.test_training import mlp
from tests.test_training import some_data
from tfdist import HierarchicalStrategy
from tfdist._extended import NoiseScaleMeter
from tfdist.callbacks import BatchSizeRamp
from tfdist.callbacks import NoiseScaleMonitor
from tfdist.callbacks.batch_size_ramp import grown_to
from tfdist.data import rampable
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import DGC
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import GradientAccumulation
from tfdist.rows import take_rows


def linear():
    return keras.Sequential([keras.Input((6,)), dense(1, 1, use_bias=False)])


def row_gradients(model, x, y):
    """The gradient of each row's squared error."""
    kernel = model.get_weights()[0]
    return 2 * (x @ kernel - y) * x


def twin(parts, scale=1.0):
    """The noise scale of one step in which the replicas have these rows' gradients."""
    parts = [part for part in parts if len(part)]
    replicas, rows = len(parts), sum(map(len, parts))
    small = sum(len(part) / rows * np.sum(part.mean(0) ** 2) for part in parts)
    big = np.sum(np.concatenate(parts).mean(0) ** 2)
    noise, signal = rows * (small - big) / (replicas - 1), (replicas * big - small) / (replicas - 1)
    return scale * max(0.0, noise) / signal if signal > 0 else np.inf


def compiled(strategy, optimizer, build=linear):
    with strategy.scope():
        model = build()
        model.compile(optimizer(), "mse")
    return model


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.0),
    "GlobalClip": lambda: GlobalClip(keras.optimizers.SGD(0.0), clipnorm=1e-3),
    "LossScaleOptimizer": lambda: LossScaleOptimizer(keras.optimizers.SGD(0.0), 64.0),
}


@on_ranks(Layout(1, 2), Layout(2, 2, "mpi"), Layout(2, 1, "horovod"))
def test_equal_to_a_twin_and_to_the_covariance():
    strategy = HierarchicalStrategy()
    replicas = strategy.num_replicas_in_sync
    x, y = some_data(rows=11)
    for name, optimizer in OPTIMIZERS.items():
        model = compiled(strategy, optimizer)
        # The last batch of each has equal parts, unequal ones, and replicas without rows.
        for rows, batch_size in ((8, 8), (11, 11), (10, 8)):
            fit = {"batch_size": batch_size, "shuffle": False, "verbose": 0}
            history = model.fit(x[:rows], y[:rows], callbacks=[NoiseScaleMonitor(0.0)], **fit).history
            last = slice(rows - (rows % batch_size or batch_size), rows)
            gradients = row_gradients(model, x[last], y[last])
            parts = [take_rows(tf.constant(gradients), index, replicas) for index in range(replicas)]
            np.testing.assert_allclose(
                history["noise_scale"], twin(list(map(np.asarray, parts))), rtol=1e-3, err_msg=f"{name} {rows}"
            )
    # Several batches for one update: the mean over many updates is that of the rows themselves.
    x, y = some_data(rows=4096)
    order = np.random.default_rng(0).permutation(len(x))
    accumulating = compiled(strategy, lambda: GradientAccumulation(keras.optimizers.SGD(0.0), 2))
    history = accumulating.fit(x[order], y[order], batch_size=16, shuffle=False, verbose=0, callbacks=[NoiseScaleMonitor(0.999)])
    gradients = row_gradients(accumulating, x, y)
    expected = gradients.var(0).sum() / np.sum(gradients.mean(0) ** 2)
    assert history.history["noise_scale"][0] == pytest.approx(expected, rel=0.35)
    assert accumulating.train_function is None  # the next step is traced without it
    # It is gone after fit, and measures nothing that has no whole gradients.
    assert "noise_scale" not in accumulating.fit(x[:16], y[:16], verbose=0).history
    sparse = compiled(strategy, lambda: DGC(0.1, sparsity=0.5, rampup=(), dense_below=0))
    assert np.isnan(sparse.fit(x[:16], y[:16], verbose=0, callbacks=[NoiseScaleMonitor()]).history["noise_scale"][0])


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"))
def test_the_batch_follows_it():
    strategy = HierarchicalStrategy()
    rows = tf.data.Dataset.from_tensor_slices(some_data(rows=64))
    model = compiled(strategy, lambda: keras.optimizers.SGD(1e-4), mlp)
    # 12 is no more than double the first, so the second epoch has the noise scale itself, or 8.
    ramp = BatchSizeRamp("noise_scale", max_batch_size=32)
    fit = {"epochs": 5, "shuffle": False, "verbose": 0}
    history = model.fit(rampable(rows, 4), callbacks=[NoiseScaleMonitor(0.9), ramp], **fit).history
    sizes, grown = [4], 1.0
    for scale in history["noise_scale"][:-1]:
        grown = grown_to(scale / 4, grown, 2.0)
        sizes.append(min(32, round(4 * grown)))
    assert history["batch_size"] == sizes
    assert sizes[-1] > 4
    with pytest.raises(ValueError, match=r"put one before it in `callbacks`. Received: logs of \['"):
        model.fit(rampable(rows, 4), callbacks=[BatchSizeRamp("noise_scale")], **fit)


def test_state_and_wrong_use():
    model = mlp()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="must be two or more. Received: "):
        model.fit(*some_data(), verbose=0, callbacks=[NoiseScaleMonitor()])
    with pytest.raises(ValueError, match=r"Received: smoothing=1.0"):
        NoiseScaleMonitor(1.0)
    meter = NoiseScaleMeter(elements=10, smoothing=0.0)  # a sum of statistics has fewer elements
    assert [meter.is_for([[tf.zeros(2)], [tf.zeros(length)]]) for length in (2, 3)] == [False, True]
    assert NoiseScaleMonitor.noise_scale(-1.0, 2.0) == 0
    assert NoiseScaleMonitor.noise_scale(1.0, -2.0) == np.inf
