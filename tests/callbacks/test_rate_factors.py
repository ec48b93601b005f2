"""The callbacks of the learning rate: each factor, and their product."""

import itertools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist._keras import KERAS_3
from tfdist.callbacks import CosineAnnealing
from tfdist.callbacks import CyclicalLearningRate
from tfdist.callbacks import LearningRateScaling
from tfdist.callbacks import LearningRateWarmup
from tfdist.callbacks import PolynomialDecay
from tfdist.callbacks import StepDecay
from tfdist.optimizers import GradientAccumulation
from tfdist.optimizers import LARS


class Rates(keras.callbacks.Callback):
    """Notes the rate of each batch."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(float(np.array(self.model.optimizer.learning_rate)))


def build(optimizer=None, **compile_kwargs):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    # The gradient of a row of ones is 1 in each weight, whatever the weights are.
    model.compile(optimizer or keras.optimizers.SGD(0.4, momentum=0.9), lambda t, p: p[:, 0], **compile_kwargs)
    return model


def fit(model, callbacks, epochs=6, steps=4, **kwargs):
    """Trains with batches of 16 rows; returns the rate of each batch."""
    rates = Rates()
    x = np.ones((16 * steps, 2), "float32")
    history = model.fit(
        x, x[:, :1], batch_size=16, epochs=epochs, shuffle=False, verbose=0, callbacks=[*callbacks, rates], **kwargs
    )
    return rates.seen, history.history


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (LearningRateWarmup(epochs=2), {0: 0.1, 1: 0.55, 1.5: 0.775, 2: 1, 7: 1}),
        (LearningRateWarmup(epochs=2, start=0.25, shape="exponential"), {0: 0.25, 1: 0.5, 2: 1}),
        (CosineAnnealing(T_0=4), {0: 1, 1: 0.5 + 0.5**1.5, 2: 0.5, 4: 1}),
        (CosineAnnealing(T_0=1, T_mult=3, minimum=0.2, start_epoch=1), {0: 1, 1: 1, 1.5: 0.6, 2: 1, 3.5: 0.6, 5: 1, 9.5: 0.6}),
        (PolynomialDecay(epochs=4, power=1, end=0.2), {0: 1, 2: 0.6, 4: 0.2, 9: 0.2}),
        (StepDecay({1: 0.5, 3: 0.1}), {0: 1, 1: 0.5, 2.9: 0.5, 3: 0.05}),
        (CyclicalLearningRate(0.5, 1, "triangular2"), {0: 0.5, 0.5: 0.75, 1: 1, 1.5: 0.75, 2: 0.5, 3: 0.75, 5: 0.625}),
        (LearningRateScaling(32, batch_size=128), {0: 4, 5: 4}),
        (LearningRateScaling(32, "sqrt", batch_size=128), {0: 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_factors(callback, expected):
    assert {epoch: callback.factor(epoch) for epoch in expected} == pytest.approx(expected)


def closed_form(epochs, steps, base=0.4):
    """Warm-up over two epochs times a cosine over six, at each step."""
    places = [epoch + step / steps for epoch in epochs for step in range(steps)]
    warmup = [min(1.0, 0.1 + 0.9 * place / 2) for place in places]
    return [base * w * (1 + math.cos(math.pi * place / 6)) / 2 for w, place in zip(warmup, places, strict=True)]


def two():
    return [LearningRateWarmup(epochs=2), CosineAnnealing(T_0=6)]


def test_the_rate_is_the_product_in_any_order():
    for callbacks in itertools.permutations(two()):
        rates, history = fit(build(), callbacks)
        np.testing.assert_allclose(rates, closed_form(range(6), 4), rtol=1e-6)
        np.testing.assert_allclose(history["learning_rate"], closed_form(range(6), 4)[3::4], rtol=1e-6)


def test_the_rate_goes_by_what_fit_is_told_not_by_a_counter():
    """Resumed runs began again, and fine-tuning began at the end (tensorflow#49208, #47115, horovod#1921)."""
    whole, resumed = build(), build()
    fit(whole, two())
    resumed.set_weights(whole.get_weights())
    np.testing.assert_allclose(fit(resumed, two(), initial_epoch=3)[0], closed_form(range(3, 6), 4), rtol=1e-6)
    np.testing.assert_allclose(fit(whole, two(), epochs=2)[0], closed_form(range(2), 4), rtol=1e-6)


def test_several_steps_at_once_have_the_rate_of_the_first():
    rates, _ = fit(build(steps_per_execution=2), two())
    np.testing.assert_allclose(rates, closed_form(range(6), 4)[::2], rtol=1e-6)


@pytest.mark.parametrize("by_keras", [False, True])
def test_batches_of_one_update_have_one_rate(by_keras):
    """Also where an epoch ends between two updates: 5 batches an epoch, 3 an update."""
    if by_keras and not KERAS_3:
        pytest.skip("Keras 2 does not accumulate")
    optimizer = (
        keras.optimizers.SGD(0.4, gradient_accumulation_steps=3) if by_keras else GradientAccumulation(keras.optimizers.SGD(0.4), 3)
    )
    rates, _ = fit(build(optimizer), two(), steps=5)
    each = closed_form(range(6), 5)
    np.testing.assert_allclose(rates, [each[batch - batch % 3] for batch in range(30)], rtol=1e-6)


def optimizers_with_rates_in_their_velocity():
    made = {
        "SGD": lambda: keras.optimizers.SGD(0.4, momentum=0.9),
        "LARS": lambda: LARS(0.4, trust_coefficient=None, weight_decay=0.0),
    }
    if not KERAS_3:
        made["legacy SGD"] = lambda: keras.optimizers.legacy.SGD(0.4, momentum=0.9)
    return made


@pytest.mark.parametrize("name", optimizers_with_rates_in_their_velocity())
@pytest.mark.parametrize("corrects", [True, False])
def test_momentum_correction(name, corrects):
    """Goyal et al., equation 10: v = m * rate / (rate before) * v + rate * g, where g is 1."""
    model = build(optimizers_with_rates_in_their_velocity()[name]())
    callbacks = [StepDecay({2: 0.1, 4: 5.0}, momentum_correction=corrects), LearningRateWarmup(1, momentum_correction=corrects)]
    rates, _ = fit(model, callbacks)
    w = v = 0.0
    for step, rate in enumerate(rates):
        ratio = rate / rates[step - 1] if corrects and step else 1.0
        v = 0.9 * ratio * v + rate
        w -= v
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-5)


def test_velocity_without_rates_is_left_alone():
    model = build(keras.optimizers.Adam(0.4))
    fit(model, [StepDecay({1: 0.1})], epochs=2)
    plain = build(keras.optimizers.Adam(0.4))
    x = np.ones((64, 2), "float32")
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.4 * 0.1**epoch)
    plain.fit(x, x[:, :1], batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[schedule])
    np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], rtol=1e-6)


def test_between_epochs_the_optimizer_holds_the_base(tmp_path):
    class Between(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            found.append(float(np.array(self.model.optimizer.learning_rate)))

    found, model = [], build()
    fit(model, [StepDecay({0: 0.5}), Between()], epochs=2)
    assert [*found, float(np.array(model.optimizer.learning_rate))] == pytest.approx([0.4, 0.4, 0.4])


def test_keras_callbacks_change_the_base():
    class Halve(keras.callbacks.Callback):
        """As ReduceLROnPlateau does."""

        def on_epoch_end(self, epoch, logs=None):
            rate = self.model.optimizer.learning_rate
            self.model.optimizer.learning_rate = float(np.array(rate)) / 2

    expected = [0.04, 0.02, 0.01]
    for callbacks in ([StepDecay({0: 0.1}), Halve()], [Halve(), StepDecay({0: 0.1})]):
        assert fit(build(), callbacks, epochs=3, steps=1)[0] == pytest.approx(expected)
    absolute = keras.callbacks.LearningRateScheduler(lambda epoch: 0.2 / (epoch + 1))
    rates, _ = fit(build(), [absolute, StepDecay({0: 0.1})], epochs=2, steps=2)
    assert rates == pytest.approx([0.02, 0.02, 0.01, 0.01])


def test_a_fit_that_was_interrupted_leaves_nothing_behind():
    class Interrupt(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyboardInterrupt

    model = build()
    with pytest.raises(KeyboardInterrupt):
        fit(model, [*two(), Interrupt()])
    np.testing.assert_allclose(fit(model, two())[0], closed_form(range(6), 4), rtol=1e-6)


def test_warm_up_starts_at_the_unscaled_rate():
    callbacks = [LearningRateWarmup(epochs=1), LearningRateScaling(base_batch_size=4)]
    rates, _ = fit(build(), callbacks, epochs=2)
    assert rates == pytest.approx([0.4, 0.7, 1.0, 1.3, 1.6, 1.6, 1.6, 1.6])


def test_the_batch_that_the_rate_is_scaled_by():
    x = np.ones((32, 2), "float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
    rates = Rates()
    for data in ({"x": dataset.batch(16)}, {"x": x, "y": x[:, :1], "batch_size": 16}, {"x": Batches()}):
        build(GradientAccumulation(keras.optimizers.SGD(0.1), 2)).fit(
            **data, shuffle=False, verbose=0, callbacks=[LearningRateScaling(8), rates]
        )
    assert rates.seen == pytest.approx([0.4] * 6)
    spec = (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1)))
    made = tf.data.Dataset.from_generator(lambda: iter([(x, x[:, :1])]), output_signature=spec)
    with pytest.raises(ValueError, match=r"give LearningRateScaling\(batch_size"):
        build().fit(made, shuffle=False, verbose=0, callbacks=[LearningRateScaling(8)])


class Batches(keras.utils.PyDataset if KERAS_3 else keras.utils.Sequence):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.ones((16, 2), "float32"), np.ones((16, 1), "float32")


def test_what_cannot_be_multiplied_is_refused():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
    with pytest.raises(ValueError, match="learning rate that is a number, not a schedule.* learning_rate=ExponentialDecay of SGD"):
        fit(build(keras.optimizers.SGD(schedule)), two())
    with pytest.raises(ValueError, match="has one owner. Received: StepDecay twice"):
        fit(build(), [StepDecay({1: 0.1}), StepDecay({2: 0.1})])
    x = np.ones((8, 2), "float32")
    unknown = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(4).filter(lambda x, y: True)
    with pytest.raises(ValueError, match=r"needs the number of its steps.*steps_per_epoch=\.\.\.\). Received: steps=None"):
        build().fit(unknown, shuffle=False, verbose=0, callbacks=two())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LearningRateWarmup(epochs=0), "above 0. Received: epochs=0"),
        (lambda: LearningRateWarmup(start=0.0), r"in \(0, 1\]. Received: start=0.0"),
        (lambda: LearningRateWarmup(shape="cubic"), "must be one of .* Received: shape='cubic'"),
        (lambda: LearningRateScaling(0), "1 or more. Received: base_batch_size=0"),
        (lambda: LearningRateScaling(8, "cubic"), "Received: rule='cubic'"),
        (lambda: LearningRateScaling(8, batch_size=-1), "Received: batch_size=-1"),
        (lambda: CosineAnnealing(0), "Received: T_0=0"),
        (lambda: CosineAnnealing(1, 0.5), "1 or more. Received: T_mult=0.5"),
        (lambda: CosineAnnealing(1, minimum=2.0), "Received: minimum=2.0"),
        (lambda: PolynomialDecay(3, start_epoch=3), "above start_epoch=3. Received: epochs=3"),
        (lambda: PolynomialDecay(3, power=0), "Received: power=0"),
        (lambda: PolynomialDecay(3, end=-1), "Received: end=-1"),
        (lambda: StepDecay({}), "dictionary of an epoch's number and its factor. Received: factors={}"),
        (lambda: StepDecay({2: 0.1, 1: 0.1}), r"must rise.* Received: factors=\{2: 0.1, 1: 0.1\}"),
        (lambda: StepDecay({0.5: 0.1}), "whole numbers, 0 or more. Received: epoch 0.5"),
        (lambda: StepDecay({1: 0}), r"Received: factors\[1\]=0"),
        (lambda: CyclicalLearningRate(1.0), r"in \[0, 1\). Received: minimum=1.0"),
        (lambda: CyclicalLearningRate(0.1, 0), "Received: step_epochs=0"),
        (lambda: CyclicalLearningRate(0.1, shape="round"), "Received: shape='round'"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
