"""What goes wrong on one rank ends all of them, soon, with an error that says what and where."""

import os
import pathlib
import signal
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.harness import Layout
from tests.harness import on_ranks
from tests.harness import RanksFailed
from tests.harness import run_on_ranks

BOTH = (Layout(2, 1, "mpi"), Layout(2, 1, "horovod"))
X, Y = np.ones((64, 3), "float32"), np.ones((64, 1), "float32")


def make_model(strategy, width=4, activation="relu", l2=None, loss="mse", metrics=(), **kwargs):
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((3,)),
                keras.layers.Dense(width, activation=activation),
                keras.layers.Dense(1, kernel_regularizer=l2),
            ]
        )
        model.compile(keras.optimizers.SGD(kwargs.pop("rate", 0.01)), loss, metrics=list(metrics), **kwargs)
    return model


@on_ranks(Layout(3, 1, "mpi"), Layout(2, 1, "horovod"))
def test_settings_that_differ_are_named_on_every_rank():
    strategy = tfdist.HierarchicalStrategy()
    odd = strategy.rank == strategy.size - 1
    cases = {
        "units": ({"width": 4 + odd}, {}),
        "activation": ({"activation": "tanh" if odd else "relu"}, {}),
        "regularizer": ({"l2": "l2" if odd else None}, {}),
        "loss": ({"loss": "mae" if odd else "mse"}, {}),
        "metrics": ({"metrics": ["mae"] if odd else []}, {}),
        "learning_rate": ({"rate": 0.02 if odd else 0.01}, {}),
        "batch": ({}, {"batch_size": 8 if odd else 16}),
        "epochs": ({}, {"epochs": 3 if odd else 2}),
        "validation": ({}, {"validation_data": (X, Y) if odd else None}),
        "callbacks": ({}, {"callbacks": [keras.callbacks.EarlyStopping("loss")] if odd else []}),
    }
    for word, (model_arguments, fit_arguments) in cases.items():
        model = make_model(strategy, **model_arguments)
        start = time.monotonic()
        with pytest.raises(tfdist.RankMismatchError, match=rf"Received: .*{word}.* on rank {strategy.size - 1}"):
            model.fit(X, Y, verbose=0, **fit_arguments)
        assert time.monotonic() - start < 10
    make_model(strategy).fit(X, Y, verbose=0, callbacks=[keras.callbacks.CSVLogger(os.devnull)] if odd else [])


@on_ranks(*BOTH)
def test_refusals_with_two_ranks():
    strategy = tfdist.HierarchicalStrategy()
    with pytest.raises(ValueError, match=r"jit_compile=False.*Received: jit_compile=True"):
        make_model(strategy, jit_compile=True).fit(X, Y, verbose=0)

    tf.random.set_seed(None)
    unseeded = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64).batch(8)
    with pytest.raises(ValueError, match="shuffled without a seed"):
        make_model(strategy).fit(unseeded, shuffle=False, verbose=0)
    tf.random.set_seed(strategy.rank)
    with pytest.raises(tfdist.RankMismatchError, match="seed: 0 on rank 0, 1 on rank 1"):
        make_model(strategy).fit(X, Y, verbose=0)


@on_ranks(Layout(2, 1, "mpi"))
def test_an_engine_that_adds_wrongly_is_found_at_the_first_step():
    strategy = tfdist.HierarchicalStrategy(algorithm="engine")
    rightly = strategy._communicator.all_reduce
    strategy._communicator.all_reduce = lambda tensors, name: [2 * total for total in rightly(tensors, name)]
    with pytest.raises(tfdist.RankMismatchError, match="A known gradient must come out"):
        make_model(strategy).fit(X, Y, verbose=0)


@on_ranks(*BOTH, timeout_s=120)
def test_saving_on_all_ranks_and_on_one():
    strategy = tfdist.HierarchicalStrategy()
    folder = pathlib.Path.cwd()  # the same on all ranks
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    callbacks = [keras.callbacks.ModelCheckpoint(str(folder / "all.keras"), save_freq=2)]
    if strategy.is_chief:
        callbacks.append(keras.callbacks.ModelCheckpoint(str(folder / "chief.keras")))
    x = np.random.default_rng(0).normal(size=(64, 3)).astype("float32")
    for _ in range(5):
        model.fit(x, x[:, :1], batch_size=16, epochs=2, verbose=0, callbacks=callbacks)
        model.save(folder / "end.keras")
        if strategy.is_chief:
            model.save_weights(folder / "end_chief.weights.h5")
        strategy._agreement.meet("look at the files")
        for name in ("all", "chief", "end"):
            loaded = keras.models.load_model(folder / f"{name}.keras", compile=False)
            for ours, theirs in zip(model.get_weights(), loaded.get_weights(), strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-7)
        strategy._agreement.meet("go on")


class Act(keras.callbacks.Callback):
    def __init__(self, action):
        super().__init__()
        self.action = action

    def on_train_batch_end(self, batch, logs=None):
        if batch == 3 and self.action is not None:
            pathlib.Path(os.environ["CHECKPOINT"]).with_suffix(".time").write_text(str(time.time()))
            self.action()


def fit_and_act(action):
    strategy = tfdist.HierarchicalStrategy()
    callbacks = [keras.callbacks.ModelCheckpoint(os.environ["CHECKPOINT"], save_freq=1)]
    callbacks.append(Act(action if strategy.rank == 1 else None))
    make_model(strategy).fit(X, Y, batch_size=8, epochs=1000, verbose=0, callbacks=callbacks)


def rank_1_raises():
    def boom():
        raise ValueError("boom")

    fit_and_act(boom)


def rank_1_is_killed():
    fit_and_act(lambda: os.kill(os.getpid(), signal.SIGKILL))


def rank_1_exits():
    fit_and_act(lambda: os._exit(3))


def rank_1_stops_training():
    def stop():
        current = tfdist._keras.current_call()
        current.model.stop_training = True

    fit_and_act(stop)


def rank_0_evaluates_alone():
    strategy = tfdist.HierarchicalStrategy()
    model = make_model(strategy)
    model.fit(X, Y, verbose=0)
    if strategy.is_chief:
        model.evaluate(X, Y, verbose=0)


@pytest.mark.parametrize("launcher", ["mpi", "horovod"])
@pytest.mark.parametrize(
    ("function", "message"),
    [
        (rank_1_raises, r"rank 1 left \(ValueError: boom\); rank 0 was about to: fit: (train|run)_step|Rank 1 failed"),
        (rank_1_is_killed, r"Rank 1 was killed by signal 9"),
        (rank_1_exits, r"Rank 1 exited with code 3"),
        (rank_1_stops_training, r"rank 1 left \(its script ended\); rank 0 was about to: .*fit"),
        (rank_0_evaluates_alone, r"rank 1 left \(its script ended\); rank 0 was about to: .*evaluate"),
    ],
)
def test_a_rank_that_fails_ends_the_others(function, message, launcher, tmp_path):
    checkpoint = tmp_path / "last.keras"
    with pytest.raises(RanksFailed, match=message):
        run_on_ranks(function, Layout(2, 1, launcher), timeout_s=90, environ={"CHECKPOINT": str(checkpoint)})
    if function is not rank_0_evaluates_alone:
        failed_at = float(checkpoint.with_suffix(".time").read_text())
        assert time.time() - failed_at < 30
        keras.models.load_model(checkpoint, compile=False)
