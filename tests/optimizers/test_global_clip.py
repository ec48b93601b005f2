import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.optimizers.common import apply
from tests.optimizers.common import some_gradients
from tests.optimizers.common import some_variables
from tfdist import HierarchicalStrategy
from tfdist._keras import KERAS_3
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import DGC
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import GradientAccumulation


@pytest.mark.parametrize("kind", ["clipnorm", "global_clipnorm"])
def test_in_one_replica_it_is_keras_own_clipping(kind):
    ours, theirs = some_variables(), some_variables()
    clip = GlobalClip(keras.optimizers.Adam(0.1), **{kind: 0.5})
    adam = keras.optimizers.Adam(0.1, **{kind: 0.5})
    for step in range(3):
        apply(clip, some_gradients(ours, step), ours)
        apply(adam, some_gradients(theirs, step), theirs)
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), atol=1e-6)


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"), Layout(2, 1, "horovod"))
def test_the_sum_is_clipped():
    """Gradients +10 and -9: of norm 1 after the sum. Clipped before, they would be +1 and -1."""
    strategy = HierarchicalStrategy()
    with strategy.scope():
        w, optimizer = tf.Variable(0.0), GlobalClip(keras.optimizers.SGD(1.0), global_clipnorm=1.0)
        optimizer.build([w])

    def replica():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        optimizer.apply_gradients([(tf.where(tf.equal(number, 0), 10.0, -9.0), w)])

    tf.function(lambda: strategy.run(replica))()
    assert all(copy.numpy() == -1.0 for copy in strategy.experimental_local_results(w))
    # Used alone afterwards, the inner optimizer sums again.
    inner = optimizer.inner_optimizer
    tf.function(lambda: strategy.run(lambda: inner.apply_gradients([(tf.constant(1.0), w)])))()
    expected = -1.0 - strategy.num_replicas_in_sync
    assert [copy.numpy() for copy in strategy.experimental_local_results(w)] == [expected] * len(
        strategy.experimental_local_results(w)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: GlobalClip(keras.optimizers.SGD(0.1)), "Received: clipnorm=None, global_clipnorm=None"),
        (lambda: GlobalClip(keras.optimizers.SGD(0.1), clipnorm=1.0, global_clipnorm=1.0), "only one of them"),
        (lambda: GlobalClip(keras.optimizers.SGD(0.1), clipnorm=0.0), "above 0. Received: clipnorm=0.0"),
        (lambda: GlobalClip(keras.optimizers.SGD(0.1, clipnorm=1.0), clipnorm=1.0), "it clips already"),
        (lambda: GlobalClip("sgd", clipnorm=1.0), "goes around a Keras optimizer. Received: optimizer='sgd'"),
        (lambda: GlobalClip(GradientAccumulation(keras.optimizers.SGD(0.1), 2), clipnorm=1.0), "accumulation goes around"),
        (lambda: GlobalClip(DGC(), clipnorm=1.0), "it sums itself"),
        (lambda: GlobalClip(LossScaleOptimizer(keras.optimizers.SGD(0.1)), clipnorm=1.0), "loss scaling goes around"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 clips after the sum")
@on_ranks(Layout(1, 2))
def test_clipping_in_each_replica_is_warned_of_once():
    strategy = HierarchicalStrategy()

    def fit(optimizer):
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(optimizer, "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)

    fit(GlobalClip(keras.optimizers.SGD(0.1), clipnorm=1.0))  # a warning would be an error here
    with pytest.warns(UserWarning, match=r"GlobalClip\(SGD\(...\), global_clipnorm=1.0\)"):
        fit(keras.optimizers.SGD(0.1, global_clipnorm=1.0))
    fit(keras.optimizers.SGD(0.1, global_clipnorm=1.0))
