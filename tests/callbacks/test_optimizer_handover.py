import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tests.test_training import mlp
from tests.test_training import some_data
from tfdist._keras import forget
from tfdist.callbacks import LearningRateWarmup
from tfdist.callbacks import OptimizerHandover
from tfdist.callbacks import OptimizerRestart
from tfdist.callbacks.optimizer_handover import sgd_share
from tfdist.optimizers import Blend
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import RMSpropToSGD


def test_the_share_at_whole_epochs_does_not_overshoot():
    """As printed in the paper it is 0.5, 0.9, 1.3 and then 1."""
    assert [sgd_share(e, 10, 5) for e in (10, 11, 12, 13, 14)] == pytest.approx([0.5, 0.7, 0.9, 1.0, 1.0])


@given(st.floats(0, 50), st.floats(0.1, 20))
def test_the_share_rises_without_jumps_or_kinks(center, period):
    places = np.linspace(0, center + period, 2001)
    shares = [sgd_share(e, center, period) for e in places]
    assert all(0 <= share <= 1 for share in shares)
    rises = np.array([later - earlier for earlier, later in itertools.pairwise(shares)])
    assert (rises >= 0).all()
    assert rises.max() <= (places[1] - places[0]) / period * (1 + 1e-6)


class Shares(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        self.seen.append(float(np.array(getattr(optimizer, "inner_optimizer", optimizer).sgd_share)))


def fit(optimizer, callbacks, **kwargs):
    model, shares = mlp(), Shares()
    model.compile(optimizer, "mse")
    arguments = {"epochs": 5, "batch_size": 12, **kwargs}
    history = model.fit(*some_data(rows=48), shuffle=False, verbose=0, callbacks=[*callbacks, shares], **arguments)
    return shares.seen, history.history


def test_the_share_of_each_step():
    places = [epoch + batch / 4 for epoch in range(5) for batch in range(4)]
    expected = [sgd_share(e, 2, 2) for e in places]
    for optimizer in (RMSpropToSGD(0.1), GlobalClip(RMSpropToSGD(0.1), global_clipnorm=1.0)):
        shares, history = fit(optimizer, [OptimizerHandover(2, 2), LearningRateWarmup(1), OptimizerRestart(every=2)])
        np.testing.assert_allclose(shares, expected, rtol=1e-6)
        np.testing.assert_allclose(history["sgd_share"], expected[3::4], rtol=1e-6)
    resumed, _ = fit(RMSpropToSGD(0.1), [OptimizerHandover(2, 2)], initial_epoch=3)
    np.testing.assert_allclose(resumed, expected[12:], rtol=1e-6)


def test_the_share_is_not_what_a_restart_forgets():
    optimizer = RMSpropToSGD(0.1)
    optimizer.build([tf.Variable(1.0)])
    optimizer.sgd_share.assign(0.5)
    assert forget(optimizer, tf.distribute.get_strategy(), None, ())
    assert float(optimizer.sgd_share.numpy()) == 0.5


def test_it_ends_as_momentum_sgd():
    weights = []
    for optimizer in (RMSpropToSGD(0.1), keras.optimizers.SGD(0.1, momentum=0.9)):
        callbacks = [OptimizerHandover(0, 1e-3)] if isinstance(optimizer, RMSpropToSGD) else []
        model = mlp()
        model.compile(optimizer, "mse")
        # The first step is half RMSprop's; what it remembers is forgotten.
        before = model.get_weights()
        model.fit(*some_data(rows=12), batch_size=12, shuffle=False, verbose=0, callbacks=callbacks)
        model.set_weights(before)
        callbacks = [OptimizerHandover(0, 1e-3), OptimizerRestart(epochs=[1])] if callbacks else [OptimizerRestart(epochs=[1])]
        model.fit(*some_data(), batch_size=12, initial_epoch=1, epochs=3, shuffle=False, verbose=0, callbacks=callbacks)
        weights.append(model.get_weights())
    for mine, other in zip(*weights, strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


def test_another_optimizer_and_wrong_numbers_are_refused():
    with pytest.raises(ValueError, match="is for tfdist.optimizers.RMSpropToSGD.* Received: SGD"):
        fit(keras.optimizers.SGD(0.1), [OptimizerHandover()])
    with pytest.raises(ValueError, match="0 or more. Received: center=-1"):
        OptimizerHandover(center=-1)
    with pytest.raises(ValueError, match="above 0. Received: period=0"):
        OptimizerHandover(period=0)
    for interval in ((2, 1), (-1, 3), (1,)):
        with pytest.raises(ValueError, match="two epochs, the start and the end, that do not fall. Received: interval="):
            OptimizerHandover(interval=interval)


def test_any_two_over_an_interval():
    places = [epoch + batch / 4 for epoch in range(5) for batch in range(4)]
    seen = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(float(np.array(blend.second_share))))
    blend = Blend(keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.1, momentum=0.9))
    model = mlp()
    model.compile(GlobalClip(blend, global_clipnorm=1.0), "mse")
    fit = {"epochs": 5, "batch_size": 12, "shuffle": False, "verbose": 0}
    history = model.fit(*some_data(), callbacks=[OptimizerHandover(interval=(1, 3)), note], **fit).history
    np.testing.assert_allclose(seen, np.clip((np.array(places) - 1) / 2, 0, 1), rtol=1e-6)
    np.testing.assert_allclose(history["second_share"], seen[3::4], rtol=1e-6)
