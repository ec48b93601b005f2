import os
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.harness import skip_unless_installed
from tests.killing import start
from tests.killing import weights_differ
from tests.test_training import assert_equal_on_all_ranks
from tests.test_training import mlp
from tests.test_training import some_data
from tfdist import HierarchicalStrategy
from tfdist._keras import KERAS_3
from tfdist.callbacks import BatchSizeRamp
from tfdist.callbacks import checkpoint_file
from tfdist.callbacks import CheckpointAndResume
from tfdist.callbacks import CosineAnnealing
from tfdist.callbacks import LearningRateWarmup
from tfdist.callbacks import OptimizerRestart
from tfdist.callbacks.checkpoint_file import Checkpoint
from tfdist.data import rampable
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import DGC
from tfdist.optimizers import GradientAccumulation
from tfdist.optimizers import LARS


class Noise(keras.callbacks.Callback):
    """Draws from the global generators, and counts."""

    def __init__(self):
        super().__init__()
        self.drawn = []

    def on_epoch_begin(self, epoch, logs=None):
        self.drawn.append(float(np.random.rand()))

    def get_state(self):
        return {"drawn": self.drawn}

    def set_state(self, state):
        self.drawn = list(state["drawn"])


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def model_of(optimizer, strategy=None, dropout=False):
    keras.utils.set_random_seed(1)
    with (strategy or HierarchicalStrategy()).scope():
        model = mlp()
        if dropout:
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dropout(0.3), *model.layers])
        model.compile(optimizer(), "mse", metrics=["mae"])
    return model


def run(folder, epochs, *others, optimizer=sgd, data=None, strategy=None, settings=None, **kwargs):
    """What one start of a script does: a new model, trained from whatever is in the folder."""
    model = model_of(optimizer, strategy, **kwargs)
    x = data() if data else {"x": some_data()[0], "y": some_data()[1], "batch_size": 12, "shuffle": False}
    history = model.fit(**x, epochs=epochs, verbose=0, callbacks=[CheckpointAndResume(folder, **(settings or {})), *others])
    return model, history


def assert_same_weights(first, second):
    for mine, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize(
    "optimizer",
    [
        sgd,
        lambda: keras.optimizers.Adam(0.01),
        lambda: LossScaleOptimizer(LARS(0.5, trust_coefficient=0.05), dynamic_growth_steps=5),
        lambda: DGC(0.1, sparsity=0.5, rampup=(), dense_below=10),
    ],
    ids=["SGD", "Adam", "LossScaleOptimizer(LARS)", "DGC"],
)
def test_a_run_in_parts_is_one_run(optimizer, tmp_path):
    whole, _ = run(tmp_path / "whole", 6, Noise(), optimizer=optimizer)
    for epochs in (2, 3, 6):
        np.random.seed(epochs)  # another process, whose generators are elsewhere
        noise = Noise()
        parts, history = run(tmp_path / "parts", epochs, noise, optimizer=optimizer)
    assert history.epoch == [3, 4, 5]
    assert_same_weights(parts, whole)
    assert getattr(parts.optimizer, "scale", 1) == getattr(whole.optimizer, "scale", 1)
    assert len(noise.drawn) == 6
    assert len(set(noise.drawn)) == 6
    assert len(checkpoint_file.files(tmp_path / "parts")) == 2


def shuffled(batch_size=12):
    dataset = tf.data.Dataset.from_tensor_slices(some_data()).shuffle(48, seed=5).batch(batch_size)
    return {"x": dataset, "shuffle": False}


def shuffled_arrays():
    x, y = some_data()
    return {"x": x, "y": y, "batch_size": 12, "shuffle": True}


def growing():
    return {"x": rampable(tf.data.Dataset.from_tensor_slices(some_data()).shuffle(48, seed=5), 4), "shuffle": False}


@pytest.mark.parametrize("data", [shuffled, shuffled_arrays])
def test_the_order_of_rows_goes_on(data, tmp_path):
    whole, _ = run(tmp_path / "whole", 5, data=data)
    run(tmp_path / "parts", 2, data=data)
    parts, _ = run(tmp_path / "parts", 5, data=data)
    assert_same_weights(parts, whole)
    other, _ = run(tmp_path / "other", 5)
    assert any((mine != theirs).any() for mine, theirs in zip(other.get_weights(), whole.get_weights(), strict=True))


def all_callbacks():
    stop = keras.callbacks.EarlyStopping("loss", patience=50)
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.9, patience=1, min_delta=1.0)
    ramp = BatchSizeRamp("plateau", monitor="learning_rate", patience=2, factor=1.5, max_batch_size=9)
    return [
        LearningRateWarmup(2),
        CosineAnnealing(T_0=7),
        ramp,
        OptimizerRestart(monitor="loss", patience=2),
        plateau,
        stop,
        Noise(),
    ]


def test_callbacks_go_on(tmp_path):
    whole, whole_history = run(tmp_path / "whole", 7, *all_callbacks(), data=growing)
    histories = []
    for epochs in (3, 4, 7):
        parts, history = run(tmp_path / "parts", epochs, *all_callbacks(), data=growing)
        histories.append(history.history)
    assert_same_weights(parts, whole)
    for name, values in whole_history.history.items():
        assert [value for history in histories for value in history[name]] == values, name
    assert whole_history.history["batch_size"][-1] > 4


class Stop(keras.callbacks.Callback):
    """Ends a run before a step, as a crash does."""

    def __init__(self, epoch, step):
        super().__init__()
        self.place, self.epoch = (epoch, step), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            raise InterruptedError

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def crashed(folder, epochs, places, make, **kwargs):
    """What the last start of a script does that has crashed before, at these places."""
    for place in places:
        with pytest.raises(InterruptedError):
            run(folder, epochs, *make(), Stop(*place), **kwargs)
    return run(folder, epochs, *make(), **kwargs)


def test_in_the_middle_of_an_epoch(tmp_path):
    """8 steps an epoch, saved before steps 3 and 6; with callbacks that act where an epoch begins, which is not said twice."""
    settings = {"every_steps": 3}

    def make():
        return [LearningRateWarmup(2), CosineAnnealing(T_0=2), OptimizerRestart(every=1), Noise()]

    def adam():
        return LossScaleOptimizer(keras.optimizers.Adam(0.01), dynamic_growth_steps=3)

    for name, kwargs in {
        "dataset": {"data": lambda: shuffled(6), "optimizer": adam},
        "arrays": {"data": lambda: {**shuffled_arrays(), "batch_size": 6}},
        "dgc": {"data": lambda: shuffled(6), "optimizer": lambda: DGC(0.1, sparsity=0.5, rampup=(), dense_below=10)},
    }.items():
        kwargs["settings"] = settings
        whole, whole_history = run(tmp_path / f"{name}-whole", 4, *make(), **kwargs)
        parts, history = crashed(tmp_path / name, 4, [(0, 4), (0, 7), (2, 2), (2, 5)], make, **kwargs)
        assert_same_weights(parts, whole)
        assert history.epoch == [2, 3]
        for log, values in whole_history.history.items():
            np.testing.assert_allclose(history.history[log], values[2:], rtol=1e-6, err_msg=f"{name} {log}")
        names = [path.name for path in checkpoint_file.files(tmp_path / name)]
        assert names == ["epoch-000003-step-00000006.tfdist", "epoch-000004.tfdist"]


def test_between_batches_that_are_added_up_nothing_is_saved(tmp_path):
    def optimizer():
        return GradientAccumulation(keras.optimizers.SGD(0.1, momentum=0.9), 3)

    settings = {"every_steps": 1, "keep": 99}
    whole, _ = run(tmp_path / "whole", 3, optimizer=optimizer, data=shuffled, settings=settings)
    assert [path.name for path in checkpoint_file.files(tmp_path / "whole")][:3] == [
        "epoch-000001.tfdist",
        "epoch-000001-step-00000002.tfdist",
        "epoch-000002.tfdist",
    ]
    parts, _ = crashed(tmp_path / "parts", 3, [(1, 3)], list, optimizer=optimizer, data=shuffled, settings=settings)
    assert_same_weights(parts, whole)


def test_steps_that_do_not_go_by_the_data(tmp_path):
    """Keras 3 reads on where an epoch ends."""

    def data():
        return {"x": shuffled()["x"].repeat(), "steps_per_epoch": 3, "shuffle": False}

    whole, _ = run(tmp_path / "whole", 4, data=data)
    run(tmp_path / "between", 2, data=data)
    assert_same_weights(run(tmp_path / "between", 4, data=data)[0], whole)
    within, _ = crashed(tmp_path / "within", 4, [(1, 2), (3, 1)], list, data=data, settings={"every_steps": 1})
    assert_same_weights(within, whole)


@pytest.mark.skipif(not KERAS_3, reason="Keras 2's dropout draws from its operations' state")
def test_random_layers_go_on(tmp_path):
    whole, _ = run(tmp_path / "whole", 4, dropout=True)
    run(tmp_path / "parts", 2, dropout=True)
    assert_same_weights(run(tmp_path / "parts", 4, dropout=True)[0], whole)


def test_a_damaged_file_is_named_and_the_one_before_is_used(tmp_path, caplog):
    whole, _ = run(tmp_path / "whole", 4)
    run(tmp_path / "parts", 3)
    older, newer = checkpoint_file.files(tmp_path / "parts")
    newer.write_bytes(newer.read_bytes()[:-100])
    (tmp_path / "parts" / "epoch-000009.tmp").write_bytes(b"half a file")
    parts, history = run(tmp_path / "parts", 4)
    assert history.epoch == [2, 3]
    assert "epoch-000003.tfdist is damaged" in caplog.text
    assert_same_weights(parts, whole)
    for path in checkpoint_file.files(tmp_path / "parts"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
    before = {path: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    with pytest.raises(
        ValueError, match=r"No checkpoint in this folder is whole.* Received: .*parts with epoch-000004.tfdist, epoch"
    ):
        run(tmp_path / "parts", 5)
    assert before == {path: path.read_bytes() for path in (tmp_path / "parts").iterdir()}
    assert older not in before


def test_what_belongs_to_another_model_is_refused(tmp_path):
    run(tmp_path, 1)
    with pytest.raises(ValueError, match="another model or optimizer.* Received: .*, SGD in the file, Adam here"):
        run(tmp_path, 2, optimizer=lambda: keras.optimizers.Adam(0.1))
    with HierarchicalStrategy().scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(sgd(), "mse")
    with pytest.raises(ValueError, match=r"kernel \(6, 8\) in the file, kernel \(6, 1\) here"):
        model.fit(*some_data(), verbose=0, callbacks=[CheckpointAndResume(tmp_path)])
    path, checkpoint = checkpoint_file.newest(tmp_path)
    path.write_bytes(checkpoint_file.pack(Checkpoint({**checkpoint.about, "format": 99}, checkpoint.arrays)))
    with pytest.raises(ValueError, match="another version of tfdist.* format 99; this one reads 2"):
        run(tmp_path, 2)


def test_a_callback_that_does_not_take_part_is_named_once(tmp_path):
    class Forgetful(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.count = 0

    with pytest.warns(UserWarning, match=r"does not hold: Forgetful. Give them `get_state\(\)`") as caught:
        run(tmp_path, 3, Forgetful(), Noise())
    assert len(caught) == 1


def test_every_epochs_and_wrong_arguments(tmp_path):
    x, y = some_data()
    model_of(sgd).fit(x, y, epochs=5, verbose=0, callbacks=[CheckpointAndResume(tmp_path, every_epochs=2, keep=9)])
    assert [path.name for path in checkpoint_file.files(tmp_path)] == [f"epoch-00000{n}.tfdist" for n in (2, 4, 5)]
    with pytest.raises(ValueError, match="Received: every_epochs=0"):
        CheckpointAndResume(tmp_path, every_epochs=0)
    with pytest.raises(ValueError, match="Received: keep=0"):
        CheckpointAndResume(tmp_path, keep=0)
    with pytest.raises(ValueError, match="Received: every_steps=0"):
        CheckpointAndResume(tmp_path, every_steps=0)


def shared_folder(strategy, name):
    """A folder that all ranks know."""
    return pathlib.Path(os.getcwd()) / name


@on_ranks(Layout(1, 2), Layout(2, 2, "mpi"), Layout(2, 1, "horovod"))
def test_on_ranks():
    strategy = HierarchicalStrategy()
    for name, optimizer in {"sgd": sgd, "dgc": lambda: DGC(0.1, sparsity=0.6, rampup=(), dense_below=10)}.items():
        whole, _ = run(shared_folder(strategy, f"{name}-whole"), 4, Noise(), optimizer=optimizer, data=shuffled, strategy=strategy)
        run(shared_folder(strategy, f"{name}-parts"), 2, Noise(), optimizer=optimizer, data=shuffled, strategy=strategy)
        np.random.seed(strategy.rank)
        parts, _ = run(shared_folder(strategy, f"{name}-parts"), 4, Noise(), optimizer=optimizer, data=shuffled, strategy=strategy)
        assert_same_weights(parts, whole)
        assert_equal_on_all_ranks(strategy, parts.get_weights())
    # In the middle of an epoch.
    settings = {"every_steps": 2}
    adam = lambda: keras.optimizers.Adam(0.01)  # noqa: E731
    kwargs = {"optimizer": adam, "data": shuffled, "strategy": strategy, "settings": settings}
    whole, whole_history = run(shared_folder(strategy, "steps-whole"), 3, **kwargs)
    parts_of_steps, history = crashed(shared_folder(strategy, "steps"), 3, [(1, 1), (1, 3)], list, **kwargs)
    assert_same_weights(parts_of_steps, whole)
    for log, values in whole_history.history.items():
        np.testing.assert_allclose(history.history[log], values[1:], rtol=1e-6, err_msg=log)
    # A file of three ranks: what two of them had for themselves goes to one.
    if strategy.size == 2:
        kernel = parts.trainable_variables[0]
        total = strategy.extended.gather_rows(parts.optimizer.slot("residual", kernel).numpy()).sum(0)
        folder = shared_folder(strategy, "dgc-parts")
        if strategy.is_chief:
            path, checkpoint = checkpoint_file.newest(folder)
            arrays = {
                name: np.concatenate([rows, rows[:1] * 0 + 1.0]) if name.startswith("own") else rows
                for name, rows in checkpoint.arrays.items()
            }
            path.write_bytes(checkpoint_file.pack(Checkpoint(checkpoint.about, arrays)))
        again, _ = run(folder, 4, Noise(), optimizer=optimizer, data=shuffled, strategy=strategy)
        kept = strategy.extended.gather_rows(again.optimizer.slot("residual", again.trainable_variables[0]).numpy())
        np.testing.assert_allclose(kept.sum(0), total + 1.0, rtol=1e-6)


@pytest.mark.parametrize("layout", [Layout(1), Layout(2, 1, "mpi")], ids=str)
def test_killed_at_any_moment(layout, tmp_path):
    """SIGKILL of all processes at moments that differ from start to start; `make soak` has more of them."""
    skip_unless_installed(layout.launcher)
    rng, moments = np.random.default_rng(), (4, 13, 9) if layout.launcher == "none" else (25,)
    assert start(layout, tmp_path, "whole", None)
    assert [start(layout, tmp_path, "killed", steps, rng.uniform(0, 0.05)) for steps in moments] == [False] * len(moments)
    assert start(layout, tmp_path, "killed", None)
    assert weights_differ(tmp_path, "whole", "killed") == []
