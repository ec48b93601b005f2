import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.optimizers.common import apply
from tests.optimizers.common import some_gradients
from tests.optimizers.common import some_variables
from tests.test_training import assert_equal_on_all_ranks
from tests.test_training import mlp
from tests.test_training import some_data
from tfdist import HierarchicalStrategy
from tfdist import mixed_precision
from tfdist._keras import unwrap
from tfdist.optimizers import LARS


def twin(weights, steps, rate, m, beta, eta, epsilon, nesterov):
    """The rule in NumPy, float64, for one variable."""
    w, v = weights.astype(np.float64), np.zeros_like(weights, np.float64)
    for g in steps:
        w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(g)
        trust = eta * w_norm / (g_norm + beta * w_norm + epsilon) if w_norm and g_norm else 1.0
        step = rate * trust * (g + beta * w)
        v = m * v - step
        w = w + (m * v - step if nesterov else v)
    return w


@pytest.mark.parametrize("nesterov", [False, True])
def test_equals_its_twin(nesterov):
    variables = some_variables()
    before = [v.numpy() for v in variables]
    optimizer = LARS(0.5, momentum=0.9, weight_decay=0.01, trust_coefficient=0.02, epsilon=1e-3, nesterov=nesterov)
    steps = [some_gradients(variables, step) for step in range(6)]
    for gradients in steps:
        apply(optimizer, gradients, variables)
    for index, variable in enumerate(variables):
        decay, eta = (0.01, 0.02) if "kernel" in variable.name else (0.0, 0.0)
        gradients = [step[index].numpy() for step in steps]
        if eta:
            expected = twin(before[index], gradients, 0.5, 0.9, decay, eta, 1e-3, nesterov)
        else:
            expected = plain_momentum(before[index], gradients, 0.5, nesterov)
        np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-5, atol=1e-6)


def plain_momentum(weights, steps, rate, nesterov):
    w, v = weights.astype(np.float64), 0.0
    for g in steps:
        v = 0.9 * v - rate * g
        w = w + (0.9 * v - rate * g if nesterov else v)
    return w


def test_golden_steps():
    """Worked out by hand: |w| = 5, |g| = 10, so lambda = 0.1 * 5 / 10; then the norm of w changes."""
    w = tf.Variable([3.0, 4.0], name="kernel")
    optimizer = LARS(1.0, momentum=0.5, weight_decay=0.0, trust_coefficient=0.1, epsilon=0.0)
    expected, v = np.array([3.0, 4.0]), np.zeros(2)
    for _ in range(5):
        v = 0.5 * v - 0.1 * np.linalg.norm(expected) / 10 * np.array([6.0, 8.0])
        expected = expected + v
        apply(optimizer, [tf.constant([6.0, 8.0])], [w])
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_trust_it_is_momentum_to_the_bit(nesterov):
    ours, theirs = some_variables(), some_variables()
    lars = LARS(0.1, weight_decay=0.0, trust_coefficient=None, nesterov=nesterov)
    sgd = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov)
    for step in range(5):
        apply(lars, some_gradients(ours, step), ours)
        apply(sgd, some_gradients(theirs, step), theirs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy())


def test_a_layer_that_is_zero_learns():
    """The trust ratio of a kernel of zeros would be 0 for ever (so it was in several implementations)."""
    w = tf.Variable(tf.zeros([2, 2]), name="kernel")
    apply(LARS(1.0, momentum=0.0), [tf.ones([2, 2])], [w])
    assert (w.numpy() < 0).all()
    before = w.numpy()
    apply(LARS(1.0, momentum=0.0, weight_decay=0.0), [tf.zeros([2, 2])], [w])
    np.testing.assert_array_equal(w.numpy(), before)


def test_multipliers_of_the_decay():
    names = ("stem/kernel", "head/kernel", "head/bias")
    variables = [tf.Variable([1.0], name=name) for name in names]
    optimizer = LARS(
        1.0,
        momentum=0.0,
        weight_decay=0.1,
        trust_coefficient=None,
        weight_decay_multipliers={"stem": 0.5, "bias": 2.0},
    )
    apply(optimizer, [tf.zeros([1])] * 3, variables)
    assert [round(float(v.numpy()[0]), 3) for v in variables] == [0.95, 0.9, 0.8]


def test_exclusion_of_nothing_and_of_more():
    for excluded, adapted in (((), True), (["kernel"], False)):
        w = tf.Variable([3.0, 4.0], name="kernel")
        apply(LARS(1.0, 0.0, 0.0, 0.1, exclude_from_layer_adaptation=excluded), [tf.constant([0.0, 2.0])], [w])
        np.testing.assert_allclose(w.numpy(), [3.0, 3.5] if adapted else [3.0, 2.0], rtol=1e-6)


@on_ranks(Layout(2, 2, "mpi"))
def test_rates_of_layers_are_the_same_to_the_bit_on_all_ranks():
    """TensorFlow rewrote the arithmetic of a step in one way on one rank, and in another on the other."""
    strategy = HierarchicalStrategy()
    mixed_precision.set_global_policy("mixed_float16")
    for _ in range(6):
        with strategy.scope():
            model = mlp()
            model.compile(LARS(0.5, trust_coefficient=0.05), "mse")
        model.fit(*some_data(rows=64), batch_size=16, epochs=10, shuffle=False, verbose=0)
        for weight in model.trainable_variables:
            copies = strategy.experimental_local_results(unwrap(weight))
            assert_equal_on_all_ranks(strategy, [copy.numpy() for copy in copies])
            np.testing.assert_array_equal(copies[0].numpy(), copies[1].numpy())


@pytest.mark.parametrize("nesterov", [False, True])
def test_slices_have_plain_momentum(nesterov):
    sparse, dense = (tf.Variable(tf.ones([4, 2]), name="embeddings") for _ in range(2))
    gradient = tf.IndexedSlices(tf.constant([[1.0, 2.0]]), tf.constant([2]), tf.constant([4, 2]))
    ours = LARS(0.5, nesterov=nesterov)
    theirs = keras.optimizers.SGD(0.5, momentum=0.9, nesterov=nesterov)
    for _ in range(3):
        apply(ours, [gradient], [sparse])
        apply(theirs, [tf.convert_to_tensor(gradient)], [dense])
    np.testing.assert_allclose(sparse.numpy(), dense.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"momentum": 1.0}, r"`momentum` must be a number in \[0, 1\). Received: momentum=1.0"),
        ({"momentum": keras.optimizers.schedules.ExponentialDecay(0.9, 1, 0.9)}, "`momentum` must be a number"),
        ({"weight_decay": -1e-4}, "Received: weight_decay=-0.0001"),
        ({"trust_coefficient": 0.0}, "Received: trust_coefficient=0.0"),
        ({"epsilon": -1.0}, "Received: epsilon=-1.0"),
        ({"weight_decay_multipliers": {"a": -1}}, r"Received: weight_decay_multipliers\['a'\]=-1"),
        ({"exclude_from_layer_adaptation": "bias"}, "list of regular expressions"),
        ({"learning_rate": 1}, "must be a float or a LearningRateSchedule.*Received: learning_rate=1"),
        ({"learning_rate": -0.1}, "must be 0 or more.*Received: learning_rate=-0.1"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        LARS(**arguments)
