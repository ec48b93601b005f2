import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import assert_equal_on_all_ranks
from tests.test_training import mlp
from tests.test_training import some_data
from tfdist import HierarchicalStrategy
from tfdist.callbacks import CosineAnnealing
from tfdist.callbacks import LearningRateWarmup
from tfdist.callbacks import RollbackOnDivergence
from tfdist.callbacks.divergence import Divergence
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import GradientAccumulation

X, Y = some_data(rows=48)


class Poison(keras.callbacks.Callback):
    """Breaks the weights after some batches, once each."""

    def __init__(self, *batches, value=np.nan):
        super().__init__()
        self.batches, self.value = list(batches), value

    def on_train_batch_end(self, batch, logs=None):
        if batch in self.batches:
            self.batches.remove(batch)
            self.model.set_weights([np.full_like(weight, self.value) for weight in self.model.get_weights()])


def batches(order=range(12)):
    rows = np.concatenate([np.arange(4 * number, 4 * number + 4) for number in order])
    return tf.data.Dataset.from_tensor_slices((X[rows], Y[rows])).batch(4)


def adam():
    return keras.optimizers.Adam(0.01)


def fit(*callbacks, optimizer=adam, data=None, strategy=None, epochs=1):
    keras.utils.set_random_seed(1)
    with (strategy or HierarchicalStrategy()).scope():
        model = mlp()
        model.compile(optimizer(), "mse")
    fit = {"epochs": epochs, "verbose": 0, "shuffle": False}
    history = model.fit(data or batches(), callbacks=list(callbacks), **fit).history
    return model, history


def assert_same(first, second):
    for mine, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_goes_back_and_the_data_come_again():
    """States are kept at 0, 2, 4, 6; the weights break after 5, so that of 4 is good, and the steps 7 to 11 have batches 4 to 8."""
    model, history = fit(RollbackOnDivergence(every_steps=2), Poison(5))
    expected, _ = fit(data=batches(range(9)))
    assert history["rollbacks"] == [1]
    assert np.isfinite(history["loss"]).all()
    assert_same(model, expected)
    # A state that was not good does not become so by the loss after it: the second time it would be gone back to.
    model, history = fit(RollbackOnDivergence(every_steps=2), Poison(5, 7))
    assert history["rollbacks"] == [2]
    assert np.isfinite(model.get_weights()[0]).all()


def test_logs_are_means_but_it_looks_at_each_batch():
    rollback, losses = RollbackOnDivergence(), [1.0, 2.0, 9.0, 0.5]
    means = np.cumsum(losses) / np.arange(1, 5)
    found = [rollback._loss_of_batch(batch, {"loss": mean}) for batch, mean in enumerate(means)]
    np.testing.assert_allclose(found, losses)
    with pytest.raises(ValueError, match=r"which must be in the logs. Received: \['mae'\]"):
        rollback._loss_of_batch(4, {"mae": 1.0})


def test_a_loss_far_above_the_best_has_diverged():
    rollback = RollbackOnDivergence(threshold=5.0, every_steps=3)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    before = model.get_weights()[0]
    data = tf.data.Dataset.from_tensor_slices((X, X.sum(1) + 1)).batch(2)
    history = model.fit(data, callbacks=[rollback, Poison(15, value=100.0)], verbose=0, shuffle=False).history
    assert history["rollbacks"] == [1]
    assert np.abs(model.get_weights()[0] - before).max() < 1


def test_batches_may_be_skipped():
    rollback = RollbackOnDivergence(every_steps=2, skip_batches=True)
    model, history = fit(rollback, Poison(5))
    expected, _ = fit(data=batches([0, 1, 2, 3, 7, 8, 9, 10, 11]))
    assert history["rollbacks"] == [1]
    assert_same(model, expected)


def test_bad_data_end_training_unless_they_are_skipped():
    broken = X.copy()
    broken[22] = np.nan
    data = tf.data.Dataset.from_tensor_slices((broken, Y)).batch(4)
    with pytest.raises(RuntimeError, match=r"Received: max_rollbacks=2, loss=nan in epoch 0, batch 9, after 2 rollbacks"):
        fit(RollbackOnDivergence(every_steps=2, max_rollbacks=2), data=data)
    model, history = fit(RollbackOnDivergence(every_steps=1, skip_batches=True), data=data, epochs=2)
    assert history["rollbacks"] == [1, 2]
    # What batch 4 did is not known to be good: the state after it has shown no loss but NaN.
    expected, _ = fit(data=batches([0, 1, 2, 3, 6, 7, 8, 9, 10, 11]), epochs=2)
    assert_same(model, expected)


def test_the_rate_is_lowered_and_velocities_go_by_it():
    def sgd():
        return keras.optimizers.SGD(0.1, momentum=0.9)

    others = lambda: [LearningRateWarmup(2), CosineAnnealing(T_0=3)]  # noqa: E731
    _, plain = fit(*others(), optimizer=sgd, epochs=3)
    lowered, history = fit(*others(), RollbackOnDivergence(every_steps=2, rate_factor=0.25), Poison(5), optimizer=sgd, epochs=3)
    np.testing.assert_allclose(history["learning_rate"], np.array(plain["learning_rate"]) * 0.25, rtol=1e-6)
    assert float(np.array(lowered.optimizer.learning_rate)) == pytest.approx(0.1)
    # Goes back, with the same rate at the same place: the batches of the same updates end at the same weights.
    constant, _ = fit(RollbackOnDivergence(every_steps=2, rate_factor=0.25), Poison(5), optimizer=sgd)
    factors = [1.0] * 4 + [0.25] * 5

    class Rates(LearningRateWarmup):
        def factor(self, epoch):
            return factors[min(8, round(epoch * 9))]

    expected, _ = fit(Rates(), optimizer=sgd, data=batches(range(9)))
    for mine, other in zip(constant.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)
    # Velocities are those of the rate at batch 4, where it was lower than at batch 6.
    rising, _ = fit(LearningRateWarmup(1), RollbackOnDivergence(every_steps=2), Poison(5), optimizer=sgd)
    factors[:] = [LearningRateWarmup(1).factor(batch / 12) for batch in (0, 1, 2, 3, 7, 8, 9, 10, 11)]
    expected, _ = fit(Rates(), optimizer=sgd, data=batches(range(9)))
    for mine, other in zip(rising.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)


def test_every_state_comes_back():
    def optimizer():
        return LossScaleOptimizer(GradientAccumulation(keras.optimizers.Adam(0.01), 2), 64.0, 3)

    model, history = fit(RollbackOnDivergence(every_steps=1), Poison(6), optimizer=optimizer)
    expected, _ = fit(data=batches(range(10)), optimizer=optimizer)
    assert history["rollbacks"] == [1]
    assert_same(model, expected)
    assert model.optimizer.scale == expected.optimizer.scale


def test_wrong_arguments_and_divergence():
    for argument, value in (("threshold", 1.0), ("every_steps", 0), ("rate_factor", 0.0), ("rate_factor", 2), ("max_rollbacks", 0)):
        with pytest.raises(ValueError, match=f"Received: {argument}={value}"):
            RollbackOnDivergence(**{argument: value})
    with pytest.raises(RuntimeError, match="from its first batch"):
        fit(RollbackOnDivergence(), data=tf.data.Dataset.from_tensor_slices((X * np.nan, Y)).batch(4))
    one = Divergence(2.0)
    assert not any(one.is_reached(loss) for loss in [3.0, 1.0, *[1.0] * 60])
    other = Divergence(2.0)
    other.set_state(one.get_state())
    assert [other.is_reached(loss) for loss in (1.9, 2.1, np.nan, np.inf, -np.inf)] == [False, True, True, True, True]
    assert not Divergence(None).is_reached(1e30)


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"), Layout(2, 2, "horovod"))
def test_all_ranks_go_back():
    """NaN on the last replica only, which the others see in the loss."""
    strategy = HierarchicalStrategy()
    broken = X.copy()
    broken[23] = np.nan
    data = tf.data.Dataset.from_tensor_slices((broken, Y)).batch(4)
    model, history = fit(RollbackOnDivergence(every_steps=2, skip_batches=True), data=data, strategy=strategy)
    assert history["rollbacks"] == [1]
    expected, _ = fit(data=batches([0, 1, 2, 3, 6, 7, 8, 9, 10, 11]), strategy=strategy)
    assert_same(model, expected)
    assert_equal_on_all_ranks(strategy, model.get_weights())
    # The same place in the data on all.
    model, history = fit(RollbackOnDivergence(every_steps=2), Poison(5), strategy=strategy)
    expected, _ = fit(data=batches(range(9)), strategy=strategy)
    assert history["rollbacks"] == [1]
    assert_same(model, expected)
