"""What SpecTrain predicts, and training with it, against NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.pipeline.test_pipeline_model import assert_close
from tests.pipeline.test_pipeline_model import compiled
from tests.pipeline.test_pipeline_model import fit
from tests.test_training import dense
from tests.test_training import some_data
from tfdist import _keras
from tfdist.optimizers import DGC
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import LARS
from tfdist.pipeline import PipelineModel
from tfdist.pipeline.prediction import predict_weights
from tfdist.pipeline.prediction import smoothed_update
from tfdist.pipeline.schedule import FORWARD
from tfdist.pipeline.schedule import one_forward_one_backward
from tfdist.pipeline.schedule import spectrain_staleness

L2 = 0.01


def test_no_step_is_no_prediction():
    weight = tf.constant([1.0, 2.0])
    assert predict_weights([weight], [tf.ones([2])], 0)[0] is weight
    np.testing.assert_allclose(predict_weights([weight], [tf.constant([0.5, -1.0])], 3)[0], [2.5, -1.0])


OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "wrapped": lambda: GlobalClip(keras.optimizers.SGD(0.1, momentum=0.9), clipnorm=100.0),
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "AdamW": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.0),
    "a schedule": lambda: keras.optimizers.Adam(keras.optimizers.schedules.PiecewiseConstantDecay([9999], [0.1, 1.0])),
    "LARS": lambda: LARS(0.1, momentum=0.9, trust_coefficient=1e-4),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_update_that_is_repeated(name):
    """Where the gradient stays as it is, so does the update: what is predicted comes true."""
    variable = keras.Variable([[1.0, 2.0]]) if _keras.KERAS_3 else tf.Variable([[1.0, 2.0]])
    optimizer = OPTIMIZERS[name]()
    optimizer.build([variable])
    for _ in range(200):
        optimizer.apply_gradients([(tf.constant([[0.5, -3.0]]), variable)])
    weight = _keras.unwrap(variable)
    predicted = predict_weights([weight.read_value()], [smoothed_update(optimizer)(variable)], 4)[0].numpy()
    before = weight.numpy()
    for _ in range(4):
        optimizer.apply_gradients([(tf.constant([[0.5, -3.0]]), variable)])
    assert np.abs(weight.numpy() - before).max() > 0
    np.testing.assert_allclose(predicted - before, weight.numpy() - before, rtol=1e-2, atol=1e-7)


def test_optimizers_that_repeat_nothing(caplog):
    assert smoothed_update(keras.optimizers.SGD(0.1)) is None
    assert "weights are not predicted" in caplog.text
    for optimizer in (keras.optimizers.Adagrad(), DGC(0.1)):
        with pytest.raises(ValueError, match=f"Received: {type(optimizer).__name__}"):
            smoothed_update(optimizer)


class Twin:
    """A pipeline of layers tanh(x W + b), the last one linear, under the mean squared error and L2, clock by clock."""

    def __init__(self, weights, stages, schedule, rate=0.1, momentum=0.9):
        self.stages, self.schedule, self.rate, self.momentum = stages, schedule, rate, momentum
        count = len(weights) // stages
        self.w = [[w.copy() for w in weights[k * count : (k + 1) * count]] for k in range(stages)]
        self.v = [[np.zeros_like(w) for w in stage] for stage in self.w]
        self.s = spectrain_staleness(stages)

    def train(self, x, y, batch):
        """One epoch."""
        self.moving, self.kept, self.back = {}, {}, {}
        for slot in one_forward_one_backward(self.stages, len(x) // batch):
            rows = slice(slot.minibatch * batch, (slot.minibatch + 1) * batch)
            if slot.direction == FORWARD:
                self.forward(slot.stage, slot.minibatch, x[rows], y[rows])
            else:
                self.backward(slot.stage, slot.minibatch)

    def weights(self, k, steps):
        return [w + (steps * v if self.schedule == "spectrain" else 0) for w, v in zip(self.w[k], self.v[k], strict=True)]

    def is_last(self, k, n):
        return k == self.stages - 1 and 2 * (n + 1) == len(self.w[k])

    def forward(self, k, i, x, y):
        weights, ends = self.weights(k, self.s.forward[k]), [self.moving.pop(i) if k else x]
        for n, (kernel, bias) in enumerate(zip(weights[::2], weights[1::2], strict=True)):
            end = ends[-1] @ kernel + bias
            ends.append(end if self.is_last(k, n) else np.tanh(end))
        self.kept[k, i] = ends, weights
        self.moving[i] = ends[-1]
        if k == self.stages - 1:
            self.back[i] = 2 * (ends[-1] - y) / y.size

    def backward(self, k, i):
        ends, weights = self.kept.pop((k, i))
        if self.schedule != "stash":
            weights = self.weights(k, self.s.backward[k])
        back, gradients = self.back.pop(i), []
        for n in reversed(range(len(ends) - 1)):
            back = back if self.is_last(k, n) else back * (1 - ends[n + 1] ** 2)
            of_l2 = 0 if self.is_last(k, n) else 2 * L2 * weights[2 * n]
            gradients = [ends[n].T @ back + of_l2, back.sum(0), *gradients]
            back = back @ weights[2 * n].T
        self.back[i] = back
        self.v[k] = [self.momentum * v - self.rate * g for v, g in zip(self.v[k], gradients, strict=True)]
        self.w[k] = [w + v for w, v in zip(self.w[k], self.v[k], strict=True)]


def tanh_chain():
    options = {"activation": "tanh", "kernel_regularizer": keras.regularizers.L2(L2)}
    return keras.Sequential([keras.Input((6,)), *(dense(6, seed, **options) for seed in range(7)), dense(1, 9)])


@on_ranks(Layout(1, 4))
def test_a_twin():
    x, y = some_data(rows=60)
    for schedule in ("spectrain", "stale", "stash"):
        for stages in (2, 4):
            pipeline = PipelineModel(tanh_chain(), stages, schedule, balance=[8 // stages] * stages)
            model = compiled(pipeline, keras.optimizers.SGD(0.05, momentum=0.9))
            twin = Twin(model.model.get_weights(), stages, schedule, rate=0.05)
            fit(model, (x, y), epochs=2)
            for _ in range(2):
                twin.train(x, y, 4)
            assert_close(model.model.get_weights(), [w for stage in twin.w for w in stage])


@on_ranks(Layout(1, 4))
def test_stages_on_one_device_are_kept_in_order():
    """TensorFlow once ran an update before a pass had read the weights: most often where all stages share a device."""
    x, y = some_data(rows=60)
    pipeline = PipelineModel(tanh_chain(), ["CPU:0"] * 4, "stale", balance=[2] * 4)
    model = compiled(pipeline, keras.optimizers.SGD(0.05, momentum=0.9))
    start = model.model.get_weights()
    twin = Twin(start, 4, "stale", rate=0.05)
    fit(model, (x, y), epochs=1)
    twin.train(x, y, 4)
    for _ in range(8):
        assert_close(model.model.get_weights(), [w for stage in twin.w for w in stage])
        model.model.set_weights(start)
        for velocity in _keras.velocities(model.optimizer):
            velocity.assign(tf.zeros_like(velocity))
        fit(model, (x, y), epochs=1)
