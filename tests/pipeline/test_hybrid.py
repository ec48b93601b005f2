"""Pipelines under a strategy: one in each process."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.harness import Layout
from tests.harness import on_ranks
from tests.pipeline.test_pipeline_model import assert_close
from tests.pipeline.test_pipeline_model import chain
from tests.pipeline.test_pipeline_model import compiled
from tests.pipeline.test_pipeline_model import fit
from tests.test_training import dense
from tests.test_training import some_data
from tfdist.pipeline import pipeline_model
from tfdist.pipeline import PipelineModel

L = keras.layers
LAYOUTS = (Layout(2, 2, "mpi"), Layout(2, 2, "horovod"))


def pipelined(build=chain, schedule="gpipe", optimizer=None):
    strategy = tfdist.HierarchicalStrategy(pipelined=True)
    with strategy.scope():
        model = compiled(PipelineModel(build(), None, schedule, 2, "parameters"), optimizer)
    return strategy, model


@on_ranks(*LAYOUTS)
def test_gpipe_is_one_process_with_the_same_global_batch():
    data = some_data(rows=40)  # the last batch has 8 rows of 16
    strategy, model = pipelined()
    assert (strategy.num_replicas_in_sync, strategy.devices) == (2, ["CPU:0", "CPU:1"])
    mine = fit(model, data, batch_size=16, validation_data=data)
    plain = compiled(chain())
    expected = fit(plain, data, batch_size=16, validation_data=data)
    assert_close(model.model.get_weights(), plain.get_weights())
    for name, values in expected.items():
        np.testing.assert_allclose(mine[name], values, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(model.predict(data[0], verbose=0), plain.predict(data[0], verbose=0), atol=1e-5)
    devices = [tfdist._keras.first_copy(tfdist._keras.unwrap(v)).device[-5:] for v in model.model.trainable_variables]
    assert set(devices) == {"CPU:0", "CPU:1"}


@on_ranks(*LAYOUTS)
def test_other_schedules_are_one_process_too():
    data = some_data(rows=52)  # the last batch has 4 rows of 8
    for schedule in ("stash", "spectrain"):
        _, model = pipelined(schedule=schedule, optimizer=keras.optimizers.Adam(0.01))
        mine = fit(model, data, batch_size=8)
        alone = compiled(PipelineModel(chain(), 2, schedule, balance="parameters"), keras.optimizers.Adam(0.01))
        expected = fit(alone, data, batch_size=8)
        assert_close(model.model.get_weights(), alone.model.get_weights())
        for name, values in expected.items():
            np.testing.assert_allclose(mine[name], values, rtol=1e-4, err_msg=name)


def with_statistics():
    return keras.Sequential(
        [
            keras.Input((6,)),
            dense(6, 1),
            L.BatchNormalization(momentum=0.5),
            dense(6, 2),
            L.BatchNormalization(momentum=0.5),
            dense(1, 3),
        ]
    )


@on_ranks(LAYOUTS[0])
def test_uneven_rows_weigh_the_same():
    """The last batch has 1 row on the first rank and 2 on the other, and a last one none and 1."""
    for rows in (11, 9):
        data = some_data(rows=rows)
        _, model = pipelined(schedule="stash")
        mine = fit(model, data, batch_size=4 if rows == 11 else 8)
        alone = compiled(PipelineModel(chain(), 2, "stash", balance="parameters"))
        expected = fit(alone, data, batch_size=4 if rows == 11 else 8)
        assert_close(model.model.get_weights(), alone.model.get_weights())
        np.testing.assert_allclose(mine["loss"], expected["loss"], rtol=1e-4)


@on_ranks(LAYOUTS[0])
def test_the_cut_is_that_of_the_first_rank():
    """Each rank measures other times."""
    strategy = tfdist.HierarchicalStrategy(pipelined=True)
    measured = [[0, 3], [0, 5]][strategy.rank]
    original, pipeline_model.stage_starts = pipeline_model.stage_starts, lambda *_: measured
    try:
        with strategy.scope():
            model = compiled(PipelineModel(chain(), None, "stash"))
    finally:
        pipeline_model.stage_starts = original
    assert model.get_config()["balance"] == [3, 5]
    fit(model, some_data(), batch_size=8, epochs=1)


@on_ranks(LAYOUTS[0])
def test_statistics_are_those_of_all_ranks():
    data = some_data(rows=48)
    for schedule in ("gpipe", "spectrain"):
        strategy, model = pipelined(with_statistics, schedule)
        fit(model, data, batch_size=16)
        for value in model.model.get_weights():
            rows = strategy.extended.gather_rows(value)
            np.testing.assert_array_equal(rows[0], rows[1])


@on_ranks(Layout(1, 2))
def test_a_strategy_of_several_replicas_is_refused():
    with tfdist.HierarchicalStrategy().scope(), pytest.raises(ValueError, match="pipelined=True.*with 2 replicas a process"):
        PipelineModel(chain(), 2)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope(), pytest.raises(ValueError, match="MirroredStrategy with 2"):
        PipelineModel(chain(), 2)


@on_ranks(Layout(1, 2))
def test_one_process_needs_no_other():
    data = some_data(rows=40)
    _, model = pipelined()
    fit(model, data)
    plain = compiled(chain())
    fit(plain, data)
    assert_close(model.model.get_weights(), plain.get_weights())
