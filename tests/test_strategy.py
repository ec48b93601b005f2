"""What one process can show of the strategy: arguments, and what it refuses."""

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.harness import launch_environ
from tests.harness import Layout
from tests.harness import on_ranks


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": ["CPU:9"]}, r"out of \['CPU:0'\]. Received: devices=\['CPU:9'\]"),
        ({"devices": ["CPU:0", "cpu:0"]}, "each once"),
        ({"devices": []}, "must name devices"),
        ({"algorithm": "butterfly"}, r"'auto', 'engine', 'ring', .*'hybrid'\]. Received: algorithm='butterfly'"),
        ({"compression": "zip"}, r"one of \['none', 'fp16', 'bf16', 'int8'\]. Received: compression='zip'"),
        ({"fusion_bytes": -1}, "Received: fusion_bytes=-1"),
        ({"communicator": "smoke"}, "Received: communicator='smoke'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        tfdist.HierarchicalStrategy(**arguments)


def test_repr_has_a_line_for_each_setting():
    lines = repr(tfdist.HierarchicalStrategy(["/CPU:0"], compression="none")).splitlines()
    assert lines[0] == "HierarchicalStrategy("
    assert [line.split("=")[0].strip() for line in lines[1:-1]] == sorted(line.split("=")[0].strip() for line in lines[1:-1])
    assert "    devices=['CPU:0']," in lines


def test_properties_of_one_process():
    strategy = tfdist.HierarchicalStrategy()
    assert (strategy.rank, strategy.size, strategy.is_chief, strategy.verbose) == (0, 1, True, 1)
    assert strategy.num_replicas_in_sync == strategy.topology.num_replicas == 1


@on_ranks(Layout(1, 3))
def test_refusals_with_three_devices():
    strategy = tfdist.HierarchicalStrategy()
    assert strategy.num_replicas_in_sync == 3
    x, y = np.ones((12, 2), "float32"), np.ones((12, 1), "float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for data in (
        {"x": x, "y": y, "batch_size": 2},
        {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(2), "shuffle": False},
    ):
        with pytest.raises(ValueError, match="batch size=2, replicas=3"):
            model.fit(verbose=0, **data)
    model.fit(x, y, batch_size=3, verbose=0)
    assert model.predict(x[:1], verbose=0).shape == (1, 1)  # fewer rows than replicas

    with pytest.raises(ValueError, match="must be batched"):
        strategy.experimental_distribute_dataset(tf.data.Dataset.range(9))


@on_ranks(Layout(1, 1))
def test_refuses_horovods_optimizer():
    hvd = pytest.importorskip("horovod.tensorflow.keras")
    hvd.init()
    strategy = tfdist.HierarchicalStrategy(communicator="local")
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(ValueError, match="plain optimizer.*Horovod's DistributedOptimizer"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)


def test_saving_is_atomic_and_leaves_nothing_else(tmp_path, monkeypatch):
    strategy = tfdist.HierarchicalStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    path = tmp_path / "model.keras"
    model.save(path)
    before = path.read_bytes()
    keras.models.load_model(path, compile=False)
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]

    monkeypatch.setattr(keras.Sequential, "get_config", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]


def test_a_model_without_our_strategy_is_saved_as_before(tmp_path):
    tfdist.HierarchicalStrategy()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    assert len(list(tmp_path.iterdir())) == 2


def test_one_import_gives_all_parts(tmp_path):
    program = (
        "import tfdist; tfdist.callbacks.LearningRateWarmup, tfdist.optimizers.LARS, tfdist.data.rampable, tfdist.mixed_precision"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=launch_environ(tmp_path), cwd="/")
