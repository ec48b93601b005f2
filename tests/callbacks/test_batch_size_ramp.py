import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import assert_equal_on_all_ranks
from tests.test_training import assert_same_training
from tests.test_training import mlp
from tests.test_training import some_data
from tests.test_training import train
from tfdist import HierarchicalStrategy
from tfdist import RankMismatchError
from tfdist.callbacks import BatchSizeRamp
from tfdist.callbacks import LearningRateScaling
from tfdist.callbacks import LearningRateWarmup
from tfdist.callbacks import PolynomialDecay
from tfdist.callbacks import StepDecay
from tfdist.callbacks.batch_control import split_batch
from tfdist.callbacks.plateau import Plateau
from tfdist.data import rampable
from tfdist.data import steps_of
from tfdist.optimizers import GradientAccumulation


class Seen(keras.callbacks.Callback):
    """Notes the steps and the rate of each epoch, and how many steps Keras expected."""

    def __init__(self):
        super().__init__()
        self.steps, self.expected, self.rates = [], [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.steps.append(0)
        self.expected.append(self.params["steps"])

    def on_train_batch_end(self, batch, logs=None):
        self.steps[-1] += 1
        self.rates.append(float(np.array(self.model.optimizer.learning_rate)))


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def clone(optimizer):
    return type(optimizer).from_config(optimizer.get_config())


def rows(count=48):
    return tf.data.Dataset.from_tensor_slices(some_data(rows=count))


def fit(ramp, *others, data=None, optimizer=None, epochs=5, **kwargs):
    model, seen = mlp(), Seen()
    model.compile(optimizer or sgd(), "mse")
    x = {"x": rampable(rows(), 4)} if data is None else data
    history = model.fit(**x, epochs=epochs, shuffle=False, verbose=0, callbacks=[ramp, *others, seen], **kwargs).history
    return model, history, seen


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((96, "data", (32, 1), None), (96, 1)),
        ((96, "data", (32, 1), 32), (32, 3)),
        ((96, "data", (32, 1), 50), (48, 2)),
        ((96, "data", (32, 1), 8), (32, 3)),  # the first batch is not made smaller
        ((96, "data", (8, 4), None), (24, 4)),
        ((100, "data", (8, 3), None), (33, 3)),
        ((100, "accumulate", (32, 1), None), (32, 3)),
        ((10, "accumulate", (32, 1), None), (32, 1)),
    ],
)
def test_split_batch(arguments, expected):
    assert split_batch(*arguments) == expected


def test_steps_progress_and_logs_follow(capsys):
    data = rampable(rows(), 4).map(lambda x, y: (x, y)).prefetch(2)
    _, history, seen = fit(BatchSizeRamp({1: 2, 2: 2, 4: 2}, max_batch_size=24), data={"x": data})
    assert history["batch_size"] == [4, 8, 16, 16, 24]
    assert seen.steps == seen.expected == [12, 6, 3, 3, 2]
    # What the batch could not take, the rate does: 32 rows were wanted.
    assert history["learning_rate"] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.075])
    assert steps_of(data) == 12  # as it was
    model = mlp()
    model.compile(sgd(), "mse")
    model.fit(rampable(rows(), 4), epochs=2, shuffle=False, verbose=1, callbacks=[BatchSizeRamp({1: 2})])
    text = capsys.readouterr().out
    assert "12/12" in text
    assert "6/6" in text
    assert "/12" not in text.partition("Epoch 2/2")[2]


def test_all_ways_are_the_same_training():
    """Also across several updates: what the data give at once, or several batches one after the other."""
    accumulating = GradientAccumulation(sgd(), 1)
    x, y = some_data(rows=48)
    ways = [
        fit(BatchSizeRamp({1: 2, 3: 3})),
        fit(BatchSizeRamp({1: 2, 3: 3}, max_step_batch_size=8), optimizer=GradientAccumulation(sgd(), 1)),
        fit(BatchSizeRamp({1: 2, 3: 3}, mode="accumulate"), optimizer=accumulating, data={"x": x, "y": y, "batch_size": 4}),
    ]
    for model, history, _ in ways:
        assert history["batch_size"] == [4, 8, 8, 24, 24]
        for mine, first in zip(model.get_weights(), ways[0][0].get_weights(), strict=True):
            np.testing.assert_allclose(mine, first, atol=1e-5)
    assert [sum(seen.steps) for _, _, seen in ways] == [12 + 6 + 6 + 2 + 2, 12 + 6 + 6 + 6 + 6, 60]
    assert int(accumulating.steps.numpy()) == 1  # as it was


def test_the_first_epoch_has_the_first_size_and_a_resumed_one_its_own():
    """Keras's own hook for data raised the batch before the first epoch."""
    assert fit(BatchSizeRamp({2: 2}), epochs=3)[1]["batch_size"] == [4, 4, 8]
    assert fit(BatchSizeRamp({2: 2, 4: 2}), initial_epoch=3)[1]["batch_size"] == [8, 16]


def test_where_a_schedule_would_have_cut_the_rate():
    history = fit(BatchSizeRamp(StepDecay({1: 0.5, 3: 0.25}), max_batch_size=16))[1]
    assert history["batch_size"] == [4, 8, 8, 16, 16]
    assert history["learning_rate"] == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05])
    decay = PolynomialDecay(epochs=5, power=1)
    _, history, seen = fit(BatchSizeRamp(decay, max_batch_size=12), optimizer=keras.optimizers.SGD(0.1))
    assert history["batch_size"] == [4, 5, 7, 10, 12]
    # rate / batch is that of the decay, at each step
    places = [epoch + step / steps for epoch, steps in enumerate(seen.steps) for step in range(steps)]
    sizes = np.repeat(history["batch_size"], seen.steps)
    np.testing.assert_allclose(np.array(seen.rates) / sizes, 0.1 / 4 * np.array([decay.factor(e) for e in places]), rtol=1e-5)


def test_plateau():
    plateau = Plateau("loss", 2)
    assert [plateau.is_reached({"loss": x}) for x in (3, 2, 2, 2, 2, 1, 1, np.nan)] == [0, 0, 0, 1, 0, 0, 0, 1]
    again = Plateau("loss", 2)
    again.set_state(plateau.get_state())
    assert [again.is_reached({"loss": x}) for x in (1, 1)] == [0, 1]
    ramp = BatchSizeRamp("plateau", patience=1, factor=3)
    still = keras.optimizers.SGD(0.0)
    assert fit(ramp, optimizer=still, epochs=4)[1]["batch_size"] == [4, 4, 12, 36]
    with pytest.raises(ValueError, match=r"must be in the logs, which have .* Received: monitor='val_loss'"):
        fit(BatchSizeRamp("plateau", monitor="val_loss"))


def test_scaling_follows():
    history = fit(BatchSizeRamp({1: 2}), LearningRateScaling(base_batch_size=2), epochs=2)[1]
    assert history["learning_rate"] == pytest.approx([0.2, 0.4])


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"), Layout(2, 2, "horovod"))
def test_on_ranks():
    """All callbacks together equal one process; a rank with other settings is named."""
    strategy = HierarchicalStrategy()

    def callbacks():
        ramp = BatchSizeRamp({1: 2, 3: 2}, max_step_batch_size=8, max_batch_size=12)
        return [LearningRateScaling(4), LearningRateWarmup(epochs=1), ramp, StepDecay({4: 0.1})]

    slow = keras.optimizers.SGD(0.02, momentum=0.9, nesterov=True), keras.optimizers.Adam(0.002)
    for make in (lambda: GradientAccumulation(clone(slow[0]), 1), lambda: GradientAccumulation(clone(slow[1]), 2)):
        histories = []
        for scope in (strategy.scope(), None):
            keras.utils.set_random_seed(1)
            # Keras 3 reads a batch before it trains under a strategy, and would get another order for it.
            data = rampable(rows(50).shuffle(50, seed=3, reshuffle_each_iteration=False), 4)
            if scope is None:
                model = mlp()
                model.compile(make(), "mse")
            else:
                with scope:
                    model = mlp()
                    model.compile(make(), "mse")
            histories.append((model, model.fit(data, epochs=5, shuffle=False, verbose=0, callbacks=callbacks()).history))
        assert_same_training(histories)
        assert_equal_on_all_ranks(strategy, histories[0][0].get_weights())
    if strategy.size > 1:
        with pytest.raises(RankMismatchError, match="epochs"):
            train(
                strategy,
                mlp,
                some_data(),
                fit={"callbacks": [LearningRateWarmup(epochs=1 + strategy.rank)]},
                optimizer=sgd,
                loss=lambda: "mse",
            )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchSizeRamp({1: 0.5}), r"does not shrink. Received: schedule\[1\]=0.5"),
        (lambda: BatchSizeRamp({2: 2, 1: 2}), "must rise"),
        (lambda: BatchSizeRamp("sometimes"), "Received: schedule='sometimes'"),
        (lambda: BatchSizeRamp({1: 2}, mode="both"), "Received: mode='both'"),
        (lambda: BatchSizeRamp({1: 2}, max_batch_size=0), "Received: max_batch_size=0"),
        (lambda: BatchSizeRamp("plateau", factor=1.0), "Received: factor=1.0"),
        (lambda: BatchSizeRamp("plateau", patience=0), "Received: patience=0"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_batches_that_cannot_grow():
    x, y = some_data()
    with pytest.raises(ValueError, match=r'rampable, .*mode="accumulate". Received: ndarray, no'):
        fit(BatchSizeRamp({1: 2}), data={"x": x, "y": y, "batch_size": 4})
    with pytest.raises(ValueError, match="Received: .*Dataset, a `steps_per_epoch`"):
        fit(BatchSizeRamp({1: 2}), data={"x": rampable(rows(), 4).repeat()}, steps_per_epoch=3)
    with pytest.raises(ValueError, match=r"GradientAccumulation\(optimizer, 1\).* Received: SGD"):
        fit(BatchSizeRamp({1: 2}, mode="accumulate"), data={"x": x, "y": y})
    with pytest.raises(ValueError, match="a batch without end: give `max_batch_size`"):
        fit(BatchSizeRamp(PolynomialDecay(epochs=2)))
