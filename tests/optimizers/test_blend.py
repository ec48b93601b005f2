import keras
import numpy as np
import pytest

from tests.harness import Layout
from tests.harness import on_ranks
from tests.optimizers.common import apply
from tests.optimizers.common import some_gradients
from tests.optimizers.common import some_variables
from tests.test_training import assert_same_training
from tests.test_training import mlp
from tests.test_training import some_data
from tests.test_training import train
from tfdist import HierarchicalStrategy
from tfdist._keras import forget
from tfdist.callbacks import GradientNoise
from tfdist.callbacks import LearningRateWarmup
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import Blend
from tfdist.optimizers import DGC
from tfdist.optimizers import GradientAccumulation


def sgd(rate=0.1):
    return keras.optimizers.SGD(rate, momentum=0.9)


def adam(rate=0.01):
    return keras.optimizers.Adam(rate)


def after(optimizer, steps=3):
    variables = some_variables()
    for number in range(steps):
        apply(optimizer, some_gradients(variables, number), variables)
    return [variable.numpy() for variable in variables]


def with_share(share):
    blend = Blend(sgd(), adam())
    blend.second_share.assign(share)
    return blend


def test_the_ends_are_the_optimizers_themselves():
    for share, plain in ((0.0, sgd), (1.0, adam)):
        for mine, other in zip(after(with_share(share)), after(plain()), strict=True):
            np.testing.assert_array_equal(mine, other)


def test_what_has_no_share_may_be_infinite():
    variables, blend = some_variables(), Blend(sgd(), sgd(3e38))
    apply(blend, [100 * gradient for gradient in some_gradients(variables, 0)], variables)
    assert all(np.isfinite(variable.numpy()).all() for variable in variables)


def test_in_between_it_is_the_mean():
    for mine, first, second in zip(after(with_share(0.25), 1), after(sgd(), 1), after(adam(), 1), strict=True):
        np.testing.assert_allclose(mine, 0.75 * first + 0.25 * second, rtol=1e-6)


def fitted(optimizer, *callbacks, epochs=2):
    keras.utils.set_random_seed(1)
    model = mlp()
    model.compile(optimizer, "mse")
    model.fit(*some_data(), batch_size=12, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
    return model


def test_rates_noise_and_restarts_reach_both():
    for share, plain in ((0.0, sgd), (1.0, adam)):
        callbacks = lambda: [LearningRateWarmup(2), GradientNoise(0.1)]  # noqa: E731
        mine, other = fitted(with_share(share), *callbacks()), fitted(plain(), *callbacks())
        for weight, theirs in zip(mine.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_allclose(weight, theirs, atol=1e-7)
    blend = Blend(adam(), sgd())
    blend.second_share.assign(1.0)
    mine, other = fitted(blend, LearningRateWarmup(2)), fitted(sgd(), LearningRateWarmup(2))  # with its velocities
    for weight, theirs in zip(mine.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(weight, theirs, atol=1e-7)
    blend = with_share(0.5)
    fitted(blend)
    assert len(forget(blend, HierarchicalStrategy(), None, ())) == 4 * 3  # a velocity, and two moments
    assert int(blend.second_optimizer.iterations.numpy()) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Blend(GradientAccumulation(sgd(), 2), adam()), "accumulation goes around.* Received: GradientAccumulation"),
        (lambda: Blend(sgd(), LossScaleOptimizer(adam())), "loss scaling goes around.* Received: LossScaleOptimizer"),
        (lambda: Blend(sgd(), DGC(0.1)), "it sums itself. Received: DGC"),
        (lambda: Blend(keras.optimizers.SGD(0.1, use_ema=True), adam()), "the average of the weights.* Received: SGD"),
        (lambda: Blend(keras.optimizers.SGD(0.0), adam()), "above 0. Received: learning_rate=0.0"),
        (lambda: Blend(sgd(), sgd(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5))), "a number, not a schedule"),
        (lambda: Blend(sgd(), "adam"), "goes around a Keras optimizer"),
    ],
)
def test_wrong_optimizers(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@on_ranks(Layout(1, 2), Layout(2, 2, "mpi"), Layout(2, 1, "horovod"))
def test_equal_to_one_process():
    strategy = HierarchicalStrategy()
    fit = {"batch_size": 8, "epochs": 2}
    results = train(strategy, mlp, some_data(rows=43), fit=fit, optimizer=lambda: with_share(0.3), loss=lambda: "mse")
    assert_same_training(results, 1e-5)
