import base64
import os
import pathlib
import re
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import mlp
from tests.test_training import some_data
from tfdist import HierarchicalStrategy
from tfdist.callbacks import LearningRateWarmup
from tfdist.callbacks import TrainingReport
from tfdist.callbacks.report_files import panels_of
from tfdist.optimizers import GradientAccumulation


def fit(folder, strategy=None, *, optimizer=None, callbacks=(), **kwargs):
    with (strategy or HierarchicalStrategy()).scope():
        model = mlp()
        model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    report = TrainingReport(folder)
    x, y = some_data(rows=48)
    settings = {"batch_size": 12, "epochs": 3, "verbose": 0, "validation_data": (x, y), **kwargs}
    return report, model, model.fit(x, y, callbacks=[*callbacks, report], **settings).history


def scalars(folder):
    """The numbers in a folder's event files, by name."""
    found = {}
    for path in sorted(pathlib.Path(folder).glob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
                assert value.metadata.plugin_data.plugin_name in ("scalars", "")
                found.setdefault(value.tag, []).append(float(tf.make_ndarray(value.tensor)))
    return found


def test_all_files_say_the_same(tmp_path):
    optimizer = GradientAccumulation(keras.optimizers.SGD(0.1), 2)
    report, _, history = fit(tmp_path / "run", optimizer=optimizer, callbacks=[LearningRateWarmup(2)])
    found = scalars(tmp_path / "run")
    for name, values in history.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-6)
    assert found["updates"] == [2, 4, 6]
    assert found["batch_size"] == [24, 24, 24]
    assert "val_mae" in found
    np.testing.assert_allclose(found["compute_s"], found["step_s"])
    assert min(found["step_s"]) > 0
    page = (tmp_path / "run" / "report.html").read_text()
    image = base64.b64decode(re.search(r"base64,([^\"]+)", page)[1])
    assert image == (tmp_path / "run" / "report.png").read_bytes()
    assert image.startswith(b"\x89PNG")
    assert page.count("<tr>") == 4
    assert f"<td>{history['loss'][2]:.6g}</td>" in page
    # A run that goes on has all epochs.
    again = TrainingReport(tmp_path)
    again.set_state(report.get_state())
    assert [row["epoch"] for row in again.get_state()["rows"]] == [0, 1, 2]


def test_a_schedule_and_other_strategies(tmp_path):
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5))
    fit(tmp_path, tf.distribute.MirroredStrategy(["CPU:0"]), optimizer=optimizer, validation_data=None)
    assert scalars(tmp_path)["handed_bytes"] == [0, 0, 0]
    np.testing.assert_allclose(scalars(tmp_path)["learning_rate"], [0.1 * 0.5 ** (step / 4) for step in (4, 8, 12)], rtol=1e-6)


class SlowStart(keras.callbacks.Callback):
    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.5 if self.steps == 0 else 0.0)
        self.steps += 1


def test_the_first_step_is_not_counted(tmp_path):
    fit(tmp_path, callbacks=[SlowStart()], validation_data=None)
    assert max(scalars(tmp_path)["step_s"]) < 0.15


def test_panels():
    assert panels_of(["a", "val_a", "wire_s", "b"]) == [("a", ["a", "val_a"]), ("seconds of a step", ["wire_s"]), ("b", ["b"])]


def test_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'tfdist\[report\]'"):
        TrainingReport(tmp_path)


class SlowRank(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.05)


@on_ranks(Layout(2, 2, "mpi"), Layout(2, 1, "horovod"))
def test_parts_of_a_step():
    strategy = HierarchicalStrategy()
    folder = pathlib.Path(os.getcwd()) / f"rank{strategy.rank}"
    slow = [SlowRank()] if strategy.rank == 1 else []
    report, model, _ = fit(folder, strategy, callbacks=slow, epochs=2, validation_data=None)
    assert (folder / "report.html").exists() == strategy.is_chief
    last = report.get_state()["rows"][-1]
    assert last["compute_s"] + last["wait_s"] + last["wire_s"] == pytest.approx(last["step_s"])
    assert last["wire_s"] > 0
    # Rank 1 sleeps before its steps; rank 0 waits in its own.
    assert last["wait_s"] > 0.02 if strategy.is_chief else last["wait_s"] < last["step_s"]
    gradients = 4 * sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert gradients <= last["handed_bytes"] <= gradients + 200  # and the metrics
    assert strategy.extended._executor.clock is None
