"""Files, single batches, and callbacks."""

import pathlib
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.pipeline.test_pipeline_model import assert_close
from tests.pipeline.test_pipeline_model import branching
from tests.pipeline.test_pipeline_model import chain
from tests.pipeline.test_pipeline_model import compiled
from tests.pipeline.test_pipeline_model import fit
from tests.test_training import some_data
from tfdist import _keras
from tfdist import callbacks
from tfdist.pipeline import PipelineModel
from tfdist.pipeline.pipeline_model import SCHEDULES


@on_ranks(Layout(1, 3))
def test_a_saved_model_goes_on():
    data = some_data(rows=24)
    for schedule in ("spectrain", "gpipe"):
        model = compiled(PipelineModel(branching(), 3, schedule, 2, "parameters", recompute=True))
        fit(model, data)
        with tempfile.TemporaryDirectory() as folder:
            path = str(pathlib.Path(folder) / "model.keras")
            model.save(path)
            loaded = keras.models.load_model(path)
        assert (loaded.schedule, loaded.microbatches, loaded.recompute) == (schedule, 2, True)
        assert_close(loaded.model.get_weights(), model.model.get_weights(), 0)
        for each in (model, loaded):
            fit(each, data)
        assert_close(loaded.model.get_weights(), model.model.get_weights())
        assert type(loaded.unpipelined()) is type(branching())


@on_ranks(Layout(1, 2))
def test_weights_and_slots_are_on_the_devices_of_their_stages():
    model = compiled(PipelineModel(chain(), 2, "stale", balance=[4, 4]), keras.optimizers.Adam(0.01))
    fit(model, some_data())
    variables = [_keras.unwrap(v) for v in model.model.trainable_variables]
    assert [v.device[-5:] for v in variables] == ["CPU:0"] * 8 + ["CPU:1"] * 8
    places = {tuple(v.shape): set() for v in variables}
    for slot in _keras.all_variables(model)[len(model.variables) :]:
        if tuple(slot.shape) in places:
            places[tuple(slot.shape)].add(slot.device[-5:])
    assert places == {(6, 6): {"CPU:0", "CPU:1"}, (6,): {"CPU:0", "CPU:1"}, (6, 1): {"CPU:1"}, (1,): {"CPU:1"}}


@on_ranks(Layout(1, 2))
def test_evaluation_runs_on_the_devices_of_the_stages():
    model = compiled(PipelineModel(chain(), 2, balance=[4, 4]), jit_compile=True)
    assert not _keras.is_jit_compiled(model)  # XLA has one device
    graph = tf.function(model.call).get_concrete_function(tf.TensorSpec([2, 6])).graph
    assert [each.device[-5:] for each in graph.get_operations() if each.type == "MatMul"] == ["CPU:0"] * 4 + ["CPU:1"] * 4


@on_ranks(Layout(1, 2))
def test_one_batch_is_an_epoch():
    x, y = some_data(rows=8)
    plain = compiled(chain())
    plain.train_on_batch(x, y)
    for schedule in SCHEDULES:
        model = compiled(PipelineModel(chain(), 2, schedule, 2, "parameters"))
        model.train_on_batch(x, y)
        assert model.minibatches_under_way == 0
        if schedule in ("gpipe", "stash"):
            assert_close(model.model.get_weights(), plain.get_weights())


class Watch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.under_way = []

    def on_train_batch_end(self, batch, logs=None):
        self.under_way.append(self.model.minibatches_under_way)


@on_ranks(Layout(1, 3))
def test_callbacks():
    data, watch = some_data(rows=24), Watch()
    model = compiled(PipelineModel(chain(), 3, "spectrain", balance="parameters"))
    stop = keras.callbacks.EarlyStopping("val_loss", patience=0, restore_best_weights=True, baseline=-1.0)
    history = fit(model, data, validation_data=data, epochs=5, callbacks=[watch, callbacks.LearningRateWarmup(1), stop])
    assert watch.under_way == [1, 2, 2, 2, 2, 0] * len(history["loss"])
    with tempfile.TemporaryDirectory() as folder:
        fit(model, data, callbacks=[callbacks.CheckpointAndResume(folder)])
        with pytest.raises(ValueError, match="under way.*every_steps=2"):
            fit(model, data, callbacks=[callbacks.CheckpointAndResume(folder, every_steps=2)])


@on_ranks(Layout(1, 2))
def test_a_fit_that_was_interrupted_leaves_nothing_under_way():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise KeyboardInterrupt

    data = some_data(rows=24)
    for schedule in SCHEDULES:
        model = compiled(PipelineModel(chain(), 2, schedule, 2, "parameters"), keras.optimizers.SGD(0.0, momentum=0.9))
        with pytest.raises(KeyboardInterrupt):
            fit(model, data, callbacks=[Stop()])
        before = int(model.optimizer.iterations.numpy())
        fit(model, data)
        assert model.minibatches_under_way == 0
        assert int(model.optimizer.iterations.numpy()) == before + 12


class OwnStep(keras.Model):
    def train_step(self, data):
        raise NotImplementedError


@on_ranks(Layout(1, 2))
def test_a_model_that_trains_itself_is_refused():
    inputs = keras.Input((6,))
    with pytest.raises(ValueError, match="own train_step.*OwnStep 'mine'"):
        PipelineModel(OwnStep(inputs, keras.layers.Dense(1)(inputs), name="mine"), 1)
    assert np.isfinite(fit(compiled(PipelineModel(chain(), 1)), some_data())["loss"]).all()
