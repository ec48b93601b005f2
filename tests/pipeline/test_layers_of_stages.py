"""What layers of all kinds do in a pipeline."""

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
from tfdist import mixed_precision
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import GradientAccumulation
from tfdist.pipeline import PipelineModel
from tfdist.pipeline.pipeline_model import SCHEDULES
from tfdist.pipeline.stages import Stages

L = keras.layers


def of_all_kinds():
    """Words and numbers go in; each stage has a layer that is not a plain matrix."""
    words, numbers = keras.Input((5,), dtype="int32", name="words"), keras.Input((5, 3), name="numbers")
    start = keras.initializers.RandomNormal(0, 0.3, seed=1)
    x = L.Embedding(7, 3, embeddings_initializer=start)(words)
    x = L.Concatenate()([x, numbers])
    x = L.LSTM(6, kernel_initializer=start, recurrent_initializer="identity")(x)
    x = L.BatchNormalization()(dense(6, 2)(x))
    return keras.Model([words, numbers], [dense(1, 3, name="first")(x), dense(2, 4, name="second")(x)])


def words_and_numbers(rows=24):
    rng = np.random.default_rng(3)
    x = {"words": rng.integers(0, 7, (rows, 5)).astype("int32"), "numbers": rng.normal(size=(rows, 5, 3)).astype("float32")}
    return x, [rng.normal(size=(rows, n)).astype("float32") for n in (1, 2)]


@on_ranks(Layout(1, 3))
def test_embeddings_recurrence_several_inputs_and_outputs():
    """Batch normalisation with one micro-batch is the plain one."""
    data = words_and_numbers()
    for recompute in (False, True):
        results = []
        for wrap in (lambda m: m, lambda m: PipelineModel(m, 3, "gpipe", 1, "parameters", recompute=recompute)):
            model = wrap(of_all_kinds())
            losses = {"first": "mse", "second": "mae"}
            model.compile(keras.optimizers.SGD(0.1, momentum=0.9), losses, metrics={"second": "mse"})
            y = {"first": data[1][0], "second": data[1][1]}
            history = model.fit(data[0], y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
            results.append((history["loss"], model.predict(data[0], verbose=0), getattr(model, "model", model).get_weights()))
        plain, mine = results
        np.testing.assert_allclose(mine[0], plain[0], rtol=1e-4)
        assert_close(mine[1], plain[1], 1e-4)
        assert_close(mine[2], plain[2])


@on_ranks(Layout(1, 3))
def test_every_weight_is_given_to_a_pass():
    """Passes with weights that are 0 do not see what the variables hold."""
    model = PipelineModel(of_all_kinds(), 3, "stash", balance="parameters")
    model.compile("sgd", "mse")
    (x, _), stages = words_and_numbers(4), Stages(model, model._hidden.cut, model._hidden.devices, False)

    @tf.function
    def outputs():
        minibatch = stages.enter((x, None, None), 1.0)
        for k in range(3):
            minibatch, _ = stages.forward(k, minibatch, [tf.zeros_like(weight) for weight in stages.read(k)])
        return [minibatch["tensors"][str(i)] for i in model._hidden.cut.outputs]

    assert all(not output.numpy().any() for output in outputs())


def with_dropout():
    return keras.Sequential(
        [keras.Input((50,)), L.Dropout(0.5, seed=1), L.Dense(50, use_bias=False, kernel_initializer="identity")]
    )


@on_ranks(Layout(1, 2))
def test_dropout_has_one_mask_in_both_passes():
    """The gradient of a sum of outputs with respect to the diagonal of an identity is what the mask left of the inputs."""
    x = np.ones((1, 50), "float32")
    for recompute in (False, True):
        one_stage = with_dropout()
        model = PipelineModel(one_stage, 1, "stash", balance="parameters", recompute=recompute)
        model.compile("sgd", "mse")
        stages = Stages(model, model._hidden.cut, model._hidden.devices, recompute)

        @tf.function
        def step():
            minibatch, kept = stages.forward(0, stages.enter((x, None, None), 1.0), stages.read(0))
            output = minibatch["tensors"][str(model._hidden.cut.outputs[0])]
            back = {
                "tensors": {str(model._hidden.cut.outputs[0]): tf.ones_like(output)},
                "share": tf.ones([]),
                "scale": tf.ones([]),
            }
            return output, stages.backward(0, back, kept, stages.read(0))[1][0], sum(map(tf.size, kept))

        masks = []
        for _ in range(3):
            output, gradient, _ = step()
            np.testing.assert_allclose(np.diag(gradient.numpy()), output.numpy()[0], atol=1e-6)
            masks.append(output.numpy())
        assert (masks[0] != masks[1]).any()
        assert 0 < np.count_nonzero(masks[0]) < 50


@on_ranks(Layout(1, 2))
def test_recomputing_keeps_less_and_changes_nothing():
    def wide():
        return keras.Sequential([keras.Input((6,)), *(dense(40, seed, activation="tanh") for seed in range(5)), dense(1, 9)])

    data, kept = some_data(rows=32), []
    for schedule in ("gpipe", "stash"):
        weights = []
        for recompute in (False, True):
            model = compiled(PipelineModel(wide(), 2, schedule, 2, [3, 3], recompute=recompute))
            fit(model, data, batch_size=8)
            weights.append(model.model.get_weights())
            kept.append(sum(np.prod(shape) for shape in kept_shapes(model)))
        assert_close(*weights)
    assert kept[1] < kept[0] / 2


def kept_shapes(model):
    """Of what the forward passes of two stages keep for a batch of 8 rows."""
    stages = Stages(model, model._hidden.cut, model._hidden.devices, model.recompute)

    @tf.function
    def step():
        minibatch, first = stages.forward(0, stages.enter((*some_data(rows=8), None), 1.0), stages.read(0))
        _, second = stages.forward(1, minibatch, stages.read(1))
        return [*first, *second]

    return [tuple(tensor.shape) for tensor in step()]


@on_ranks(Layout(1, 2))
def test_half_precision():
    data = some_data(rows=48)
    mixed_precision.set_global_policy("mixed_float16")
    try:
        plain = compiled(mixed())
        expected = fit(plain, data, batch_size=8, epochs=4)["loss"]
        for schedule in SCHEDULES:
            model = compiled(PipelineModel(mixed(), 2, schedule, 2, [2, 2]))
            assert _keras.scales_loss(model.optimizer)
            losses = fit(model, data, batch_size=8, epochs=4)["loss"]
            assert type(model.optimizer) is mixed_precision.LossScaleOptimizer
            assert not any(shape == (6, 6) for shape in kept_shapes(model))  # weights are not kept, nor halves of them
            assert losses[-1] < losses[0] / 2
            if schedule == "gpipe":
                np.testing.assert_allclose(losses, expected, rtol=0.02)
            assert all(weight.dtype == np.float32 for weight in model.model.get_weights())
    finally:
        mixed_precision.set_global_policy("float32")


def mixed():
    return keras.Sequential([keras.Input((6,)), *(dense(6, s, activation="tanh") for s in range(3)), dense(1, 9, dtype="float32")])


@on_ranks(Layout(1, 2))
def test_an_overflow_of_half_precision_is_no_step():
    x, y = some_data(rows=16)
    y = y.copy()
    y[8:12] = 1e38
    mixed_precision.set_global_policy("mixed_float16")
    try:
        for schedule in SCHEDULES:
            model = compiled(PipelineModel(mixed(), 2, schedule, 2, [2, 2]), keras.optimizers.SGD(0.01, momentum=0.9))
            scale = float(_keras.loss_scale(model.optimizer))
            fit(model, (x, y), epochs=1)
            assert all(np.isfinite(weight).all() for weight in model.model.get_weights()), schedule
            assert float(_keras.loss_scale(model.optimizer)) < scale
    finally:
        mixed_precision.set_global_policy("float32")


@on_ranks(Layout(1, 2))
def test_wrappers_clipping_and_sample_weights():
    data, weights = some_data(rows=32), np.linspace(0, 2, 32, dtype="float32")

    def small():
        return keras.Sequential([keras.Input((6,)), *(dense(6, s, activation="tanh") for s in range(3)), dense(1, 9)])

    for make in (
        lambda: GlobalClip(keras.optimizers.SGD(0.1, momentum=0.9), global_clipnorm=0.1),
        lambda: GradientAccumulation(keras.optimizers.SGD(0.1, momentum=0.9), 2),
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    ):
        plain = compiled(small(), make())
        model = compiled(PipelineModel(small(), 2, "gpipe", 2, [2, 2]), make())
        for each in (plain, model):
            fit(each, data, sample_weight=weights, batch_size=8)
        assert_close(model.model.get_weights(), plain.get_weights())
        with pytest.raises(ValueError, match='schedule="gpipe"'):
            fit(compiled(PipelineModel(small(), 2, "stash", balance=[2, 2]), make()), data)
    with pytest.raises(ValueError, match="use_ema needs the gradients of all stages"):
        fit(compiled(PipelineModel(small(), 2, "stash", balance=[2, 2]), keras.optimizers.SGD(0.1, use_ema=True)), data)
    plain = compiled(small(), keras.optimizers.SGD(0.1, clipnorm=0.1))
    model = compiled(PipelineModel(small(), 1, "stash"), keras.optimizers.SGD(0.1, clipnorm=0.1))
    for each in (plain, model):
        fit(each, data, sample_weight=weights)
    assert_close(model.model.get_weights(), plain.get_weights())


@on_ranks(Layout(1, 2))
def test_a_loss_scale_that_changed_while_minibatches_were_under_way():
    """It doubles at every step: gradients are divided by what their loss was multiplied by."""
    data = some_data(rows=48)

    def trained(optimizer):
        model = compiled(PipelineModel(mixed(), 2, "stash", balance=[2, 2]), optimizer)
        fit(model, data)
        return model.model.get_weights()

    scaled = mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=2.0, dynamic_growth_steps=1)
    assert_close(trained(scaled), trained(keras.optimizers.SGD(0.05)))


@keras.saving.register_keras_serializable(package="tests")
class Elsewhere(L.Layer):
    """Keeps its weight in a list."""

    def build(self, shape):
        self.kept = [self.add_weight(shape=(shape[-1],), initializer="ones", name="hidden")]
        super().build(shape)

    def call(self, inputs):
        return inputs * self.kept[0]


@on_ranks(Layout(1, 2))
def test_a_layer_that_reads_a_weight_by_itself():
    """Keras 3 gives it others all the same; Keras 2 cannot."""
    model = compiled(PipelineModel(keras.Sequential([keras.Input((6,)), Elsewhere(), dense(1, 1)]), 2, "stash", balance=[1, 1]))
    if _keras.KERAS_3:
        fit(model, some_data())
        return
    with pytest.raises(ValueError, match="hidden.*reads by itself"):
        fit(model, some_data())
