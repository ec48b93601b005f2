"""Training gives what one process gives, in every layout."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.harness import Layout
from tests.harness import on_ranks

CHECKS = []
LAYOUTS = (
    Layout(1, 1),
    Layout(1, 2),
    Layout(2, 1, "mpi"),
    Layout(2, 2, "mpi"),
    Layout(3, 1, "mpi"),
    Layout(2, 1, "horovod"),
    Layout(2, 2, "horovod"),
    Layout(3, 1, "horovod"),
)
TOLERANCE = 1e-5
L = keras.layers


def check(function):
    """Adds a function of the strategy to those that run on every rank of every layout."""
    CHECKS.append(function)
    return function


def init(seed):
    return keras.initializers.GlorotUniform(seed=seed)


def dense(units, seed, **kwargs):
    return L.Dense(units, kernel_initializer=init(seed), **kwargs)


def train(strategy, build, data, *, fit=None, **compile_kwargs):
    """Trains twice, under the strategy and without, and returns both models and histories."""
    results = []
    for scope in (strategy.scope(), None):
        keras.utils.set_random_seed(1)
        if scope is None:
            model = build()
            model.compile(**{name: make() for name, make in compile_kwargs.items()})
        else:
            with scope:
                model = build()
                model.compile(**{name: make() for name, make in compile_kwargs.items()})
        history = model.fit(*data, shuffle=False, verbose=0, **(fit or {}))
        results.append((model, history.history))
    return results


def assert_same_training(results, tolerance=TOLERANCE):
    (ours, our_history), (plain, plain_history) = results
    for mine, theirs in zip(ours.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)
    assert our_history.keys() == plain_history.keys()
    for name in our_history:
        np.testing.assert_allclose(our_history[name], plain_history[name], rtol=1e-4, atol=1e-5, err_msg=name)


def assert_equal_on_all_ranks(strategy, arrays):
    for array in arrays:
        array = np.ascontiguousarray(array)
        rows = strategy._communicator.gather_array(array[None])
        assert (rows == rows[:1]).all()


def some_data(rows=48, features=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, features)).astype("float32")
    return x, (x.sum(1, keepdims=True) > 0).astype("float32")


def mlp(**kwargs):
    return keras.Sequential([keras.Input((6,)), dense(8, 1, activation="tanh", **kwargs), dense(1, 2, activation="sigmoid")])


@check
def weights_and_history_equal_one_process(strategy):
    x, y = some_data()
    optimizers = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "adam": lambda: keras.optimizers.Adam(0.01),
    }
    for name, optimizer in optimizers.items():
        results = train(
            strategy,
            lambda: mlp(kernel_regularizer="l2"),
            (x, y),
            fit={"batch_size": 12, "epochs": 3, "validation_data": (x[:20], y[:20])},
            optimizer=optimizer,
            loss=lambda: "binary_crossentropy",
            metrics=lambda: ["accuracy", keras.metrics.AUC(name="auc")],
        )
        assert_same_training(results)
        assert_equal_on_all_ranks(strategy, results[0][0].get_weights())
        assert_equal_on_all_ranks(strategy, [np.array(values) for values in results[0][1].values()])
        assert name


@check
def batches_that_replicas_do_not_divide(strategy):
    """No hang, no NaN, no row left out, and each row weighs the same: equal to one process."""
    x, y = some_data(rows=45)  # batches of 7, and a last one of 3: less than the replicas of some layouts
    results = train(
        strategy,
        lambda: mlp(kernel_regularizer="l2"),
        (x, y),
        fit={"batch_size": 7, "epochs": 2},
        optimizer=lambda: keras.optimizers.SGD(0.1),
        loss=lambda: "mse",
        metrics=lambda: ["mae", keras.metrics.AUC(name="auc")],
    )
    assert_same_training(results)

    # A last batch of one row: most replicas have none, in layers whose statistics would be NaN.
    def with_batch_norm():
        return keras.Sequential([keras.Input((6,)), dense(4, 1), L.BatchNormalization(), L.LayerNormalization(), dense(1, 2)])

    (model, history), _ = train(
        strategy,
        with_batch_norm,
        (x[:17], y[:17]),
        fit={"batch_size": 8, "epochs": 3},
        optimizer=lambda: keras.optimizers.SGD(0.01),
        loss=lambda: lambda t, p: tf.reduce_mean(tf.square(t - p)),
    )
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert np.isfinite(history["loss"]).all()
    assert_equal_on_all_ranks(strategy, model.get_weights())


@check
def every_row_is_trained_on_once_also_when_shuffled(strategy):
    rows = np.eye(32, dtype="float32")
    with strategy.scope():
        model = keras.Sequential([keras.Input((32,)), L.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), lambda t, p: 5 * p[:, 0])  # batches of 5; the last one has 2 rows
    model.fit(rows, np.zeros((32, 1)), batch_size=5, epochs=2, shuffle=True, verbose=0)
    counts = -model.get_weights()[0][:, 0]
    last_batch = np.isclose(counts, 3.5) | np.isclose(counts, 5.0)
    assert ((np.isclose(counts, 2.0)) | last_batch).all(), counts
    assert counts.sum() == pytest.approx(2 * (6 * 5 + 5), rel=1e-5)  # each batch moves the weights by 5 in total

    # A dataset that Keras does not shuffle for the user.
    model.set_weights([np.zeros((32, 1))])
    dataset = tf.data.Dataset.from_tensor_slices((rows, np.zeros((32, 1)))).shuffle(32).batch(4)
    with strategy.scope():
        model.compile(keras.optimizers.SGD(1.0), lambda t, p: 4 * p[:, 0])
    model.fit(dataset, epochs=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], -3.0, atol=1e-5)


@check
def evaluate_and_predict(strategy):
    x, y = some_data(rows=37)
    with strategy.scope():
        model = mlp()
        model.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(name="auc")])
    plain = mlp()
    plain.set_weights(model.get_weights())
    plain.compile("sgd", "mse", metrics=["mae", keras.metrics.AUC(name="auc")])
    for batch_size in (8, 5):
        np.testing.assert_allclose(
            model.evaluate(x, y, batch_size=batch_size, verbose=0),
            plain.evaluate(x, y, batch_size=batch_size, verbose=0),
            rtol=1e-5,
        )
        np.testing.assert_allclose(
            model.predict(x, batch_size=batch_size, verbose=0),
            plain.predict(x, batch_size=batch_size, verbose=0),
            atol=1e-6,
        )
    np.testing.assert_allclose(model.predict_on_batch(x[:7]), plain.predict_on_batch(x[:7]), atol=1e-6)
    for _ in range(3):
        np.testing.assert_allclose(model.train_on_batch(x[:7], y[:7]), plain.train_on_batch(x[:7], y[:7]), rtol=1e-4)
    np.testing.assert_allclose(model.test_on_batch(x[:9], y[:9]), plain.test_on_batch(x[:9], y[:9]), rtol=1e-4)
    for ours, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=TOLERANCE)


@check
def logs_are_global_and_callbacks_act_alike(strategy):
    x, y = some_data(rows=40)
    seen = []

    class Record(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append([float(logs[name]) for name in sorted(logs)])

    def callbacks():
        return [
            Record(),
            keras.callbacks.EarlyStopping("val_loss", mode="max", patience=2, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau("val_loss", mode="max", patience=1, factor=0.5),
        ]

    results = []
    for model_scope in (strategy.scope, tf.distribute.get_strategy().scope):
        with model_scope():
            model = mlp()
            model.compile(keras.optimizers.SGD(0.2), "mse", metrics=["mae", keras.metrics.AUC(name="auc")])
        history = model.fit(
            x,
            y,
            batch_size=8,
            epochs=9,
            shuffle=False,
            verbose=0,
            validation_data=(x[:13], y[:13]),
            callbacks=callbacks(),
        )
        results.append((model, history.history, np.array(seen)))
        seen.clear()
    (_, ours, our_batches), (_, plain, plain_batches) = results
    assert len(ours["loss"]) < 9
    assert_same_training([result[:2] for result in results])
    np.testing.assert_allclose(our_batches, plain_batches, rtol=1e-4, atol=1e-5)
    assert_equal_on_all_ranks(strategy, [our_batches])


@check
def embeddings_one_variable_none_gradients_and_mixed_dtypes(strategy):
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 9, size=(24, 5))  # many duplicates, in and across replicas
    target = rng.normal(size=(24, 1)).astype("float32")

    def embedding():
        return keras.Sequential(
            [
                keras.Input((5,), dtype="int32"),
                L.Embedding(9, 3, embeddings_initializer=init(1)),
                L.Flatten(),
                dense(1, 2),
            ]
        )

    class OneHot(L.Layer):
        def call(self, inputs):
            return tf.one_hot(tf.cast(inputs, tf.int32), 9)

    def dense_twin():
        return keras.Sequential([keras.Input((5,), dtype="int32"), OneHot(), dense(3, 1, use_bias=False), L.Flatten(), dense(1, 2)])

    # The twin, since Keras 3 alone squares duplicate slices one by one in Adam.
    for optimizer in (lambda: keras.optimizers.SGD(0.1, momentum=0.9), lambda: keras.optimizers.Adam(0.01)):
        common = {"fit": {"batch_size": 10, "epochs": 2}, "optimizer": optimizer, "loss": lambda: "mse"}
        (ours, _), _ = train(strategy, embedding, (tokens, target), **common)
        _, (twin, _) = train(strategy, dense_twin, (tokens, target), **common)
        for mine, theirs in zip(ours.get_weights(), twin.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=TOLERANCE)

    def one_variable():
        return keras.Sequential([keras.Input((6,)), dense(1, 3, use_bias=False)])

    x, y = some_data(rows=24)
    sgd = {"optimizer": lambda: keras.optimizers.SGD(0.1), "loss": lambda: "mse", "fit": {"batch_size": 6, "epochs": 2}}
    assert_same_training(train(strategy, one_variable, (x, y), **sgd))

    def frozen_and_float64():
        inputs = keras.Input((6,))
        hidden = dense(4, 4, dtype="float64", activation="tanh")(inputs)
        frozen = dense(4, 5, trainable=False)(inputs)
        return keras.Model(inputs, dense(1, 6)(L.Concatenate()([L.Activation("linear", dtype="float32")(hidden), frozen])))

    assert_same_training(train(strategy, frozen_and_float64, (x, y), **sgd))


@check
def gradients_that_are_none(strategy):
    x, y = some_data(rows=12)

    def unused_output():
        inputs = keras.Input((6,))
        model = keras.Model(inputs, dense(1, 1)(inputs))
        model.unused = dense(3, 2)
        model.unused.build((None, 6))
        return model

    with pytest.warns(UserWarning, match="Gradients do not exist") if tfdist._keras.KERAS_3 else tf.name_scope("none"):
        results = train(strategy, unused_output, (x, y), fit={"batch_size": 6}, optimizer=lambda: "sgd", loss=lambda: "mse")
    assert_same_training(results)


@check
def batch_norm_statistics_are_those_of_all_replicas(strategy):
    x, y = some_data(rows=48)
    x[24:] += 5

    def build(synchronized):
        kwargs = {"synchronized": True} if synchronized else {}
        return keras.Sequential([keras.Input((6,)), L.BatchNormalization(**kwargs), dense(1, 1)])

    for synchronized in (False, True):
        results = train(
            strategy,
            lambda synchronized=synchronized: build(synchronized),
            (x, y),
            fit={"batch_size": 12, "epochs": 2},
            optimizer=lambda: "adam",
            loss=lambda: "mse",
        )
        assert_equal_on_all_ranks(strategy, results[0][0].get_weights())
        if synchronized:
            assert_same_training(results)
        else:  # each replica normalises by its own rows, as everywhere; the mean that it keeps is still that of all rows
            moving_mean = next(w for v, w in zip(results[0][0].variables, results[0][0].get_weights()) if "moving_mean" in v.name)
            plain_mean = next(w for v, w in zip(results[1][0].variables, results[1][0].get_weights()) if "moving_mean" in v.name)
            np.testing.assert_allclose(moving_mean, plain_mean, atol=1e-5)


@check
def steps_per_execution_and_custom_loops(strategy):
    x, y = some_data(rows=40)
    results = train(
        strategy,
        mlp,
        (x, y),
        fit={"batch_size": 8, "epochs": 2},
        optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        loss=lambda: "mse",
        steps_per_execution=lambda: 2,
    )
    assert_same_training(results)

    with strategy.scope():
        weight = tf.Variable([[0.5]] * 6)
        steps = tf.Variable(
            0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
        )
    dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(8))

    def gradient(batch):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(tf.reduce_sum((batch[0] @ weight - batch[1]) ** 2, 1), global_batch_size=8)
        return tf.distribute.get_replica_context().all_reduce("SUM", tape.gradient(loss, weight)), loss

    def step(batch):
        grad, loss = gradient(batch)
        weight.assign_sub(0.1 * grad)
        steps.assign_add(1)
        return loss

    @tf.function
    def train_step(batch):
        return strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None)

    expected = np.full((6, 1), 0.5, "float32")
    for index, batch in enumerate(dataset):
        loss = train_step(batch)
        rows = slice(8 * index, 8 * index + 8)
        error = x[rows] @ expected - y[rows]
        np.testing.assert_allclose(loss, (error**2).sum() / 8, rtol=1e-4)
        expected = expected - 0.1 * 2 * x[rows].T @ error / 8
    np.testing.assert_allclose(weight.numpy(), expected, atol=1e-5)
    assert int(steps.numpy()) == 5  # a counter of each replica's own: not put together


@check
def weights_start_equal_and_broadcast(strategy):
    with strategy.scope():  # without a seed: each rank draws its own
        model = keras.Sequential([keras.Input((6,)), L.Dense(8), L.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0, momentum=0.9), "mse")
    x, y = some_data(rows=12)
    model.fit(x, y, batch_size=6, verbose=0)
    assert_equal_on_all_ranks(strategy, model.get_weights())

    if strategy.is_chief:
        model.set_weights([np.full_like(weight, 0.25) for weight in model.get_weights()])
    strategy.broadcast(model)
    assert all((weight == 0.25).all() for weight in model.get_weights())

    class Unbuilt(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = L.Dense(4, activation="tanh"), L.Dense(1)

        def call(self, inputs):
            return self.second(self.first(inputs))

    with strategy.scope():
        model = Unbuilt()
        model.compile("adam", "mse")
    model.fit(x, y, batch_size=6, verbose=0)
    assert_equal_on_all_ranks(strategy, model.get_weights())
    assert strategy.verbose == int(strategy.rank == 0)


@check
def steps_are_traced_once(strategy):
    traces = []

    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = L.Dense(1)

        def call(self, inputs):
            return self.dense(inputs)

        def train_step(self, data):
            traces.append(1)
            return super().train_step(data)

    with strategy.scope():
        model = Counting()
        model.compile("sgd", "mse")
    x, y = some_data(rows=45)
    model.fit(x, y, batch_size=8, epochs=1, verbose=0)
    before = len(traces)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    assert len(traces) == before


@on_ranks(*LAYOUTS, timeout_s=400)
def test_training():
    """All checks in one start for each layout, since TensorFlow takes seconds to import."""
    strategy = tfdist.HierarchicalStrategy()
    for run_check in CHECKS:
        print(run_check.__name__, flush=True)
        run_check(strategy)


@on_ranks(Layout(2, 1, "mpi"), Layout(2, 1, "horovod"))
def test_ranks_shuffle_alike_without_a_seed_of_the_user():
    strategy = tfdist.HierarchicalStrategy()
    rows, zeros = np.eye(32, dtype="float32"), np.zeros((32, 1))
    with strategy.scope():
        model = keras.Sequential([keras.Input((32,)), L.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), lambda t, p: 8 * p[:, 0])
    model.fit(rows, zeros, batch_size=8, epochs=2, shuffle=True, verbose=0)
    model.fit(tf.data.Dataset.from_tensor_slices((rows, zeros)).shuffle(32).batch(8), epochs=2, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], -4.0, atol=1e-5)


@on_ranks(Layout(2, 1, "mpi"), Layout(2, 2, "horovod"))
def test_data_that_each_rank_has_for_itself():
    strategy = tfdist.HierarchicalStrategy()
    rows = np.eye(32, dtype="float32")[16 * strategy.rank : 16 * strategy.rank + 16]
    own = tf.data.Dataset.from_tensor_slices((rows, np.zeros((16, 1))))

    def from_function(context):
        assert (context.num_input_pipelines, context.input_pipeline_id) == (2, strategy.rank)
        return own.batch(context.get_per_replica_batch_size(8))

    with strategy.scope():
        model = keras.Sequential([keras.Input((32,)), L.Dense(1, use_bias=False, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(1.0), lambda t, p: 8 * p[:, 0])
    dataset = strategy.distribute_datasets_from_function(from_function)
    model.fit(dataset, epochs=1, steps_per_epoch=4, shuffle=False, verbose=0)
    np.testing.assert_allclose(model.get_weights()[0], -1.0, atol=1e-5)

    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    with pytest.raises(ValueError, match=r"must be AUTO or DATA.*Received: auto_shard_policy=OFF"):
        model.fit(own.batch(8).with_options(options), shuffle=False, verbose=0)
