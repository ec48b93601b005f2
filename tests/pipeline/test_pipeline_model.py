"""Pipelines on the logical devices of one process."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import dense
from tests.test_training import some_data
from tfdist.optimizers import LARS
from tfdist.pipeline import PipelineModel
from tfdist.pipeline.pipeline_model import SCHEDULES

L = keras.layers


def chain(layers=8):
    """Equal layers in a row."""
    hidden = [dense(6, seed, activation="tanh", kernel_regularizer="l2") for seed in range(layers - 1)]
    return keras.Sequential([keras.Input((6,)), *hidden, dense(1, 99)])


def branching():
    """Outputs of early layers go to late ones."""
    inputs = keras.Input((6,))
    first = dense(8, 1, activation="tanh", kernel_regularizer="l2")(inputs)
    second = dense(8, 2, activation="tanh")(first)
    third = dense(8, 3, activation="tanh")(L.Add()([first, second]))
    return keras.Model(inputs, dense(1, 4)(L.Concatenate()([third, first, inputs])))


def compiled(model, optimizer=None, **kwargs):
    model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"], **kwargs)
    return model


def fit(model, data, **kwargs):
    return model.fit(*data, **{"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0, **kwargs}).history


def assert_close(first, second, tolerance=1e-5):
    for mine, other in zip(first, second, strict=True):
        np.testing.assert_allclose(mine, other, atol=tolerance)


@on_ranks(Layout(1, 4))
def test_gpipe_is_the_plain_model():
    data = some_data(rows=48)
    optimizers = (lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.Adam(0.01))
    for build, optimizer, devices, microbatches in (
        (chain, optimizers[0], 4, 2),
        (branching, optimizers[1], 3, 4),
        (chain, optimizers[1], 1, 3),
    ):
        pipeline = compiled(PipelineModel(build(), devices, "gpipe", microbatches, "parameters"), optimizer())
        plain = compiled(build(), optimizer())
        mine, other = (fit(model, data, batch_size=12, validation_data=data) for model in (pipeline, plain))
        assert_close(pipeline.model.get_weights(), plain.get_weights())
        for name, values in other.items():
            np.testing.assert_allclose(mine[name], values, rtol=1e-4, err_msg=name)
        np.testing.assert_allclose(pipeline.predict(data[0], verbose=0), plain.predict(data[0], verbose=0), atol=1e-5)


def delayed(build, data, stages, momentum=0.9, rate=0.1, batch=4):
    """SGD in which stage k computes with the weights of N - 1 - k updates ago: a twin of "stash"."""
    model = build()
    variables, layers = model.trainable_variables, len(model.layers)
    weights, velocities = ([np.array(v) for v in variables], [np.zeros(v.shape, "float32") for v in variables])
    stage_of = [index // 2 * stages // layers for index in range(len(variables))]
    for _ in range(2):
        history = [[weight.copy()] for weight in weights]
        for number in range(len(data[0]) // batch):
            used = [history[i][max(0, number - (stages - 1 - stage_of[i]))] for i in range(len(weights))]
            model.set_weights(used)
            rows = slice(number * batch, (number + 1) * batch)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(data[0][rows]) - data[1][rows]) ** 2) + tf.add_n(model.losses)
            for i, gradient in enumerate(tape.gradient(loss, variables)):
                velocities[i] = momentum * velocities[i] - rate * gradient.numpy()
                weights[i] = weights[i] + velocities[i]
                history[i].append(weights[i].copy())
    return weights


@on_ranks(Layout(1, 4))
def test_stash_is_sgd_with_the_delay_of_each_stage():
    data = some_data(rows=48)
    for stages in (1, 2, 4):
        pipeline = compiled(PipelineModel(chain(), stages, "stash", balance=[8 // stages] * stages))
        fit(pipeline, data)
        assert_close(pipeline.model.get_weights(), delayed(chain, data, stages))
        assert int(pipeline.optimizer.iterations.numpy()) == 24


@on_ranks(Layout(1, 4))
def test_one_stage_is_the_plain_model_and_all_schedules_learn():
    data = some_data(rows=48)
    plain = compiled(chain())
    expected = fit(plain, data)
    for schedule in SCHEDULES:
        one = compiled(PipelineModel(chain(), 1, schedule, 1))
        mine = fit(one, data)
        assert_close(one.unpipelined().get_weights(), plain.get_weights())
        for name, values in expected.items():
            np.testing.assert_allclose(mine[name], values, rtol=1e-4)
        for optimizer in (keras.optimizers.Adam(0.01), LARS(0.5, trust_coefficient=0.05)):
            history = fit(compiled(PipelineModel(branching(), 3, schedule, 2, "parameters"), optimizer), data, epochs=8)
            assert history["loss"][-1] < history["loss"][0] or schedule == "stale", schedule


@on_ranks(Layout(1, 4))
def test_several_rounds_at_once_and_data_of_unknown_length():
    data = some_data(rows=44)
    expected = compiled(PipelineModel(chain(), 4, "spectrain", balance=[2] * 4))
    fit(expected, data)
    for steps in (3, 8):  # 11 rounds, and those that drain
        model = compiled(PipelineModel(chain(), 4, "spectrain", balance=[2] * 4), steps_per_execution=steps)
        fit(model, data)
        assert_close(model.model.get_weights(), expected.model.get_weights())
    dataset = tf.data.Dataset.from_tensor_slices(data).batch(4)
    unknown = dataset.filter(lambda x, y: True)
    for given in (dataset, unknown):
        model = compiled(PipelineModel(chain(), 4, "spectrain", balance=[2] * 4))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Your input ran out of data")  # Keras 3, where the length is not known
            model.fit(given, epochs=2, shuffle=False, verbose=0)
        assert_close(model.model.get_weights(), expected.model.get_weights())
    model = compiled(PipelineModel(chain(), 4, "spectrain", balance=[2] * 4))
    model.fit(dataset.repeat(), steps_per_epoch=11, epochs=2, shuffle=False, verbose=0)
    assert_close(model.model.get_weights(), expected.model.get_weights())


@on_ranks(Layout(1, 4))
def test_traces_once():
    """Rounds that fill the stages, one that runs, those that drain: traced in the first epoch, and not again."""
    model = compiled(PipelineModel(chain(), 4, "spectrain", balance=[2] * 4))
    for epochs in (1, 3):
        fit(model, some_data(rows=48), epochs=epochs)
        steps = model._hidden.engine._compiled.values()
        assert [step.experimental_get_tracing_count() for step in steps] == [1] * 5
    model = compiled(PipelineModel(chain(), 2, "gpipe", balance="parameters"))
    fit(model, some_data(rows=48), epochs=3)
    assert model._hidden.engine._run.experimental_get_tracing_count() == 1


class Each(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.losses = []

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(float(logs["loss"]))


@on_ranks(Layout(1, 4))
def test_metrics_belong_to_their_minibatch():
    """Each batch holds its number, and the model is the identity: the loss is 0 only between outputs and labels of one batch."""
    x = np.repeat(np.arange(1, 13, dtype="float32"), 4)[:, None] * np.ones((1, 3), "float32")
    for schedule in SCHEDULES:
        layers = [L.Dense(3, use_bias=False, kernel_initializer="identity") for _ in range(4)]
        model = PipelineModel(keras.Sequential([keras.Input((3,)), *layers]), 4, schedule, 2, [1] * 4)
        model.compile(keras.optimizers.SGD(0.0, momentum=0.9), "mse")
        each = Each()
        fit(model, (x, x), callbacks=[each])
        assert each.losses == [0.0] * 24
        if schedule != "gpipe":
            fit(model, (x[:11], x[:11]), callbacks=[each])
            assert each.losses == [0.0] * 30


@on_ranks(Layout(1, 2))
def test_bad_input():
    for make, message in {
        "more stages than layers": (lambda: PipelineModel(chain(1), 2, balance="parameters"), "stages=2, layers=1"),
        "devices": (lambda: PipelineModel(chain(), ["CPU:7"]), r"which has .*'CPU:1'\]. Received: devices=\['CPU:7'\]"),
        "fewer than one": (lambda: PipelineModel(chain(), -1), "Received: devices=-1"),
        "schedule": (lambda: PipelineModel(chain(), 2, "dapple"), "Received: schedule='dapple'"),
        "balance": (lambda: PipelineModel(chain(), 2, balance=[1, 1]), r"8 together. Received: balance=\[1, 1\]"),
        "balance by name": (lambda: PipelineModel(chain(), 2, balance="bytes"), "Received: balance='bytes'"),
        "shared": (lambda: PipelineModel(shared(), 2, balance=[2, 3]), "Received: 'twice' in the stages 0 and 1"),
        "not a graph": (lambda: PipelineModel(keras.Sequential([L.Dense(1)]), 2), "Received: Sequential"),
        "an optimizer": (lambda: fit(compiled(PipelineModel(chain(), 2), keras.optimizers.Adagrad()), some_data()), "Adagrad"),
        "micro-batches": (
            lambda: fit(compiled(PipelineModel(chain(), 2, "gpipe", 3)), some_data()),
            "a batch of 4 rows, microbatches=3",
        ),
    }.values():
        with pytest.raises(ValueError, match=message):
            make()


def shared():
    inputs, twice = keras.Input((6,)), L.Dense(6, name="twice")
    return keras.Model(inputs, L.Dense(1)(L.ReLU()(twice(L.ReLU()(twice(inputs))))))
