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
from tfdist._keras import KERAS_3
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import GradientAccumulation

LAYOUTS = (Layout(1, 2), Layout(2, 1, "mpi"), Layout(2, 2, "horovod"))


def accumulating(steps):
    """SGD with momentum over several batches: by Keras's own argument where there is one."""
    if KERAS_3:
        return keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=steps)
    return GradientAccumulation(keras.optimizers.SGD(0.1, momentum=0.9), steps)


@on_ranks(*LAYOUTS)
def test_equals_one_process():
    """Batches left over at the end of an epoch are carried on; a short last batch counts as one (keras#20582).

    Of 42 rows the last batch has 2: some replicas have none in the batch whose step they take.
    """
    strategy = HierarchicalStrategy()
    for rows, steps, epochs in ((56, 3, 2), (53, 2, 2), (42, 2, 2), (56, 16, 2), (24, 1, 1)):
        for make in (accumulating, lambda steps: GradientAccumulation(keras.optimizers.Adam(0.01), steps)):
            if steps == 1 and make is accumulating and KERAS_3:
                continue
            results = train(
                strategy,
                mlp,
                some_data(rows=rows),
                fit={"batch_size": 8, "epochs": epochs},
                optimizer=lambda make=make, steps=steps: make(steps),
                loss=lambda: "mse",
            )
            assert_same_training(results)
            updates = [int(model.optimizer.iterations.numpy()) for model, _ in results]
            assert updates[0] == updates[1] == epochs * -(-rows // 8) // steps
            assert_equal_on_all_ranks(strategy, results[0][0].get_weights())


@on_ranks(Layout(2, 1, "mpi"))
def test_nothing_is_sent_but_in_the_last_batch():
    strategy = HierarchicalStrategy(algorithm="engine")
    sums = []
    plain = strategy._communicator._sum
    strategy._communicator._sum = lambda array: sums.append(array.size) or plain(array)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(50)])
        model.compile(GradientAccumulation(keras.optimizers.SGD(0.1), 4), "mse")
    x, _ = some_data(rows=32)
    model.fit(x, np.zeros((32, 50), "float32"), batch_size=4, shuffle=False, verbose=0)
    assert sum(size > 300 for size in sums) == 2  # 8 batches, 350 elements


def test_the_number_can_be_changed_without_a_new_trace():
    w, optimizer = tf.Variable(0.0), GradientAccumulation(keras.optimizers.SGD(1.0), 2)
    optimizer.build([w])
    traces = []

    @tf.function
    def step(gradient):
        traces.append(None)
        optimizer.apply_gradients([(gradient, w)])

    def run(count):
        for _ in range(count):
            step(tf.constant(1.0))
        return float(w.numpy()), int(optimizer.iterations.numpy())

    assert run(4) == (-2.0, 2)
    optimizer.steps.assign(4)
    assert run(8) == (-4.0, 4)
    assert run(3) == (-4.0, 4)
    optimizer.steps.assign(2)  # three are there already: the mean is that of four
    assert run(1) == (-5.0, 5)
    assert len(traces) == 1


def test_what_is_not_finite_does_not_stay():
    """It stayed in the buffer for ever (horovod#2957)."""
    for gradients in ((1.0, np.nan), (np.nan, 1.0)):
        w, optimizer = tf.Variable(0.0), GradientAccumulation(keras.optimizers.SGD(1.0), 2)
        for gradient in gradients:
            optimizer.apply_gradients([(tf.constant(gradient), w)])
        assert np.isnan(w.numpy())
        assert optimizer.slot("accumulated", w).numpy() == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GradientAccumulation(keras.optimizers.SGD(0.1), 0), "1 or more. Received: steps=0"),
        (lambda: GradientAccumulation(keras.optimizers.SGD(0.1), 2.0), "Received: steps=2.0"),
        (lambda: GradientAccumulation("sgd", 2), "Received: optimizer='sgd'"),
        (lambda: GradientAccumulation(GradientAccumulation(keras.optimizers.SGD(0.1), 2), 2), "that accumulates"),
        (lambda: GradientAccumulation(LossScaleOptimizer(keras.optimizers.SGD(0.1)), 2), "LossScaleOptimizer.GradientAccumulation"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
