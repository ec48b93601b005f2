import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.optimizers.common import apply
from tests.optimizers.common import some_gradients
from tests.optimizers.common import some_variables
from tfdist.optimizers import RMSpropToSGD


def twin(weights, steps, shares, rate, m, rms, rho, epsilon):
    """The rule in NumPy, float64."""
    w, mean_square, velocity = weights.astype(np.float64), 0.0, 0.0
    for g, a in zip(steps, shares, strict=True):
        mean_square = rho * mean_square + (1 - rho) * g**2
        velocity = m * velocity - (a + (1 - a) * rms / rate / (np.sqrt(mean_square) + epsilon)) * g
        w = w + rate * velocity
    return w


def test_equals_its_twin():
    variables = some_variables()
    before = [v.numpy() for v in variables]
    optimizer = RMSpropToSGD(0.05, momentum=0.8, rmsprop_rate=1e-3, rho=0.9, epsilon=1e-6)
    steps, shares = [some_gradients(variables, step) for step in range(5)], [0.0, 0.1, 0.5, 0.9, 1.0]
    for gradients, share in zip(steps, shares, strict=True):
        optimizer.sgd_share.assign(share)
        apply(optimizer, gradients, variables)
    for index, variable in enumerate(variables):
        expected = twin(before[index], [step[index].numpy() for step in steps], shares, 0.05, 0.8, 1e-3, 0.9, 1e-6)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_golden_steps():
    """Worked out by hand, without momentum: sqrt(m) = 1, 1, 1 for g = 1 after a first step with rho = 0."""
    w, optimizer = tf.Variable(0.0), RMSpropToSGD(0.5, momentum=0.0, rmsprop_rate=0.25, rho=0.0, epsilon=1e-12)
    found = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        optimizer.sgd_share.assign(share)
        apply(optimizer, [tf.constant(2.0)], [w])
        found.append(float(w.numpy()))
    # RMSprop's step is 0.25 whatever the gradient is, SGD's is 0.5 * 2.
    np.testing.assert_allclose(found, np.cumsum([-0.25, -0.4375, -0.625, -0.8125, -1.0]), rtol=1e-6)


def test_with_the_whole_share_it_is_momentum_sgd():
    ours, theirs = some_variables(), some_variables()
    optimizer, sgd = RMSpropToSGD(0.1), keras.optimizers.SGD(0.1, momentum=0.9)
    optimizer.sgd_share.assign(1.0)
    for step in range(5):
        apply(optimizer, some_gradients(ours, step), ours)
        apply(sgd, some_gradients(theirs, step), theirs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), atol=1e-6)


def test_slices_and_a_rate_of_zero():
    w, optimizer = tf.Variable(tf.ones([4, 2])), RMSpropToSGD(0.5)
    apply(optimizer, [tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([2]), tf.constant([4, 2]))], [w])
    changed = w.numpy()
    assert (changed[2] < 1).all()
    assert (changed[[0, 1, 3]] == 1).all()
    optimizer.learning_rate = 0.0
    apply(optimizer, [tf.ones([4, 2])], [w])
    np.testing.assert_array_equal(w.numpy(), changed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, r"in \[0, 1\). Received: momentum=1.0"),
        ({"rmsprop_rate": 0.0}, "above 0. Received: rmsprop_rate=0.0"),
        ({"rho": -0.1}, "Received: rho=-0.1"),
        ({"epsilon": 0.0}, "Received: epsilon=0.0"),
        ({"learning_rate": 1}, "Received: learning_rate=1"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RMSpropToSGD(**arguments)
