import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.harness import Layout
from tests.harness import on_ranks
from tests.test_training import assert_equal_on_all_ranks
from tfdist import HierarchicalStrategy
from tfdist import mixed_precision
from tfdist._keras import KERAS_3
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.optimizers import DGC
from tfdist.optimizers import GlobalClip
from tfdist.optimizers import GradientAccumulation

LAYOUTS = (Layout(1, 2), Layout(2, 1, "mpi"), Layout(2, 2, "horovod"))


CHECKS = []


def check(function):
    """Adds a function of the strategy to those that run on every rank of every layout."""
    CHECKS.append(function)
    return function


def sgd(**kwargs):
    return keras.optimizers.SGD(0.1, momentum=0.9, **kwargs)


def fit(strategy, optimizer, bad_rows=(), batches=4):
    """A few batches of 16 rows, some rows infinite; returns the model."""
    x = np.random.default_rng(0).normal(size=(16 * batches, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    x[list(bad_rows)] = np.inf
    initializer = keras.initializers.GlorotUniform(seed=1)
    with strategy.scope():
        hidden = keras.layers.Dense(3, kernel_initializer=initializer)
        model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1, kernel_initializer="ones", dtype="float32")])
        model.compile(optimizer(), "mse")
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    return model


def assert_same_weights(first, second, tolerance=1e-5):
    for mine, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, atol=tolerance)


@check
def a_scaled_loss_gives_the_same_steps(strategy):
    plain = fit(strategy, sgd)
    for wrap in (
        lambda: LossScaleOptimizer(sgd()),
        lambda: LossScaleOptimizer(GlobalClip(sgd(), global_clipnorm=1e9)),
        lambda: LossScaleOptimizer(GradientAccumulation(sgd(), 1)),
        lambda: LossScaleOptimizer(DGC(0.1, sparsity=0.0, rampup=())),
    ):
        assert_same_weights(fit(strategy, wrap), plain)


@check
def an_infinity_on_any_replica_makes_all_skip(strategy):
    """Rows 16 to 31 are the second batch; its first row is the first replica's, its last one the last replica's."""
    three = fit(strategy, lambda: LossScaleOptimizer(sgd()), bad_rows=[16])
    assert all(np.isfinite(weight).all() for weight in three.get_weights())
    for row in (16, 31):
        model = fit(strategy, lambda: LossScaleOptimizer(sgd()), bad_rows=[row])
        assert model.optimizer.scale == 2.0**14
        assert int(model.optimizer.iterations.numpy()) == 3
        assert_same_weights(model, three)
        assert_equal_on_all_ranks(strategy, model.get_weights())


@check
def a_skipped_step_leaves_what_is_kept_as_it_was(strategy):
    for wrap, name in (
        (lambda: DGC(0.1, sparsity=0.5 if strategy.size == 1 else 0.6, rampup=(), dense_below=0), "residual"),
        (lambda: GradientAccumulation(sgd(), 8), "accumulated"),
    ):
        model = fit(strategy, lambda wrap=wrap: LossScaleOptimizer(wrap(), dynamic_growth_steps=100), batches=1)
        inner = model.optimizer.inner_optimizer
        variable = model.trainable_variables[0]
        before, weights = inner.slot(name, variable).numpy(), model.get_weights()
        assert np.abs(before).sum() > 0
        x = np.ones((16, 4), "float32")
        x[15] = np.inf
        model.fit(x, np.ones((16, 1)), batch_size=16, verbose=0)
        np.testing.assert_array_equal(inner.slot(name, variable).numpy(), before)
        for mine, other in zip(model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(mine, other)
        assert model.optimizer.scale == 2.0**14


class MeanOfRows(keras.layers.Layer):
    """Adds a part of the rows' mean, which is NaN where there are none, and so is the gradient of the part."""

    def build(self, shape):
        self.part = self.add_weight(name="part", shape=(), initializer="ones")

    def call(self, x):
        return x + self.part * tf.reduce_mean(x, 0)


@check
def a_replica_without_rows_is_no_reason_to_skip(strategy):
    """The gradients that are kept for a later sum must be free of its NaN."""
    x = np.random.default_rng(0).normal(size=(17, 4)).astype("float32")
    for inner in (lambda: GradientAccumulation(sgd(), 2), lambda: DGC(0.01, sparsity=0.6, rampup=(), dense_below=0)):
        keras.utils.set_random_seed(1)  # from some weights it would diverge, and be infinite rightly
        with strategy.scope():
            layers = [keras.layers.Dense(3), MeanOfRows(), keras.layers.Dense(1)]
            model = keras.Sequential([keras.Input((4,)), *layers])
            model.compile(LossScaleOptimizer(inner(), dynamic_growth_steps=100), lambda t, p: tf.reduce_mean(tf.square(t - p)))
        model.fit(x, x.sum(1, keepdims=True), batch_size=16, epochs=2, shuffle=False, verbose=0)  # the second batch has one row
        assert model.optimizer.scale == 2.0**15
        assert all(np.isfinite(weight).all() for weight in model.get_weights())


@check
def what_compile_puts_around_an_optimizer_is_made_right(strategy):
    mixed_precision.set_global_policy("mixed_float16")
    model = fit(strategy, sgd, bad_rows=[31])
    assert type(model.optimizer) is LossScaleOptimizer
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert_equal_on_all_ranks(strategy, model.get_weights())
    ours = fit(strategy, lambda: LossScaleOptimizer(sgd()), bad_rows=[31])
    assert not isinstance(ours.optimizer.inner_optimizer, LossScaleOptimizer)
    assert_same_weights(model, ours)


@check
def a_scale_that_only_falls_ends_with_an_error_on_every_rank(strategy):
    """It fell to 1e-14 for hours (NVIDIA/DeepLearningExamples#543)."""
    mixed_precision.set_global_policy("mixed_float16")
    x = np.ones((64, 4), "float32")
    x[63] = np.nan
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(sgd(), "mse")
    before = model.get_weights()
    with pytest.raises(tf.errors.InvalidArgumentError, match="50 steps in a row were skipped.*NaN and infinity in the data"):
        model.fit(x, np.ones((64, 1)), batch_size=64, epochs=60, shuffle=False, verbose=0)
    assert model.optimizer.scale == 1.0
    assert_equal_on_all_ranks(strategy, model.get_weights())
    for mine, other in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, other)


@on_ranks(*LAYOUTS)
def test_in_every_layout():
    strategy = HierarchicalStrategy()
    for function in CHECKS:
        try:
            function(strategy)
        except BaseException as error:
            raise AssertionError(f"{function.__name__}: {error!r}") from error
        finally:
            mixed_precision.set_global_policy("float32")


def test_the_scale_rises_and_falls():
    w, optimizer = tf.Variable(0.0), LossScaleOptimizer(sgd(), initial_scale=4.0, dynamic_growth_steps=2, min_scale=2.0)
    scales = []
    for gradient in (1.0, 1.0, 1.0, np.inf, np.inf, np.inf, np.inf, 1.0, 1.0):
        optimizer.apply_gradients([(tf.constant(gradient), w)])
        scales.append(optimizer.scale)
    assert scales == [4, 8, 8, 4, 2, 2, 2, 2, 4]


def test_only_skipped_steps_in_a_row_end_training():
    w, optimizer = tf.Variable(0.0), LossScaleOptimizer(sgd(), max_skipped_steps=3)
    for gradient in (np.inf, np.inf, 1.0, np.inf, np.inf):
        optimizer.apply_gradients([(tf.constant(gradient), w)])
    with pytest.raises(tf.errors.InvalidArgumentError, match="3 steps in a row"):
        optimizer.apply_gradients([(tf.constant(np.inf, tf.float32), w)])


def test_keras_own_file_is_read(tmp_path):
    mixed_precision.set_global_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(sgd(), "mse")
        model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
        with HierarchicalStrategy().scope():
            again = keras.models.clone_model(model)
            again.compile(sgd(), "mse")
        again.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)
        again.save(tmp_path / "ours.keras")
        assert keras.models.load_model(tmp_path / "ours.keras").optimizer.inner_optimizer.momentum == 0.9
    finally:
        mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mixed_precision.set_global_policy("float16"), "must be one of .* Received: policy='float16'"),
        (lambda: LossScaleOptimizer(sgd(), initial_scale=0.0), "Received: initial_scale=0.0"),
        (lambda: LossScaleOptimizer(sgd(), dynamic_growth_steps=0), "Received: dynamic_growth_steps=0"),
        (lambda: LossScaleOptimizer(sgd(), min_scale=-1.0), "Received: min_scale=-1.0"),
        (lambda: LossScaleOptimizer(sgd(), max_skipped_steps=0), "Received: max_skipped_steps=0"),
        (lambda: LossScaleOptimizer(LossScaleOptimizer(sgd())), "The loss is scaled once"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 sums before it decides")
@on_ranks(Layout(1, 2))
def test_keras_own_class_in_a_loop_of_ones_own_is_refused():
    strategy = HierarchicalStrategy()
    with strategy.scope():
        w, optimizer = tf.Variable(1.0), keras.optimizers.LossScaleOptimizer(sgd())
        optimizer.build([w])
    with pytest.raises(ValueError, match=r"tfdist.mixed_precision.LossScaleOptimizer\(SGD"):
        strategy.run(lambda: optimizer.apply_gradients([(tf.constant(1.0), w)]))
