import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tests.harness import Layout
from tests.harness import on_ranks
from tests.optimizers.common import apply
from tfdist import HierarchicalStrategy
from tfdist._extended import ranks_of
from tfdist._keras import unwrap
from tfdist.optimizers import DGC
from tfdist.optimizers import dgc

SHAPE = (20, 30)


def make(**kwargs):
    return DGC(**{"learning_rate": 1.0, "rampup": (), "dense_below": 0, "sparsity": 0.9, **kwargs})


def gradients_of(seed, steps, shape=SHAPE):
    generator = np.random.default_rng(seed)
    return [tf.constant(generator.normal(size=shape).astype("float32")) for _ in range(steps)]


def kept(optimizer, variable, name="residual"):
    return optimizer.slot(name, variable).numpy().reshape(SHAPE)


def twin(steps, m, rate, nesterov, chosen_of):
    """Algorithm 1 of the paper in NumPy, given the elements that were chosen in each step."""
    w, u, v = np.zeros(SHAPE), np.zeros(SHAPE), np.zeros(SHAPE)
    for g, chosen in zip(steps, chosen_of, strict=True):
        u = m * u + g
        v = v + (g + m * u if nesterov else u)
        w = w - rate * np.where(chosen, v, 0)
        u, v = np.where(chosen, 0, u), np.where(chosen, 0, v)
    return w, u, v


@pytest.mark.parametrize("nesterov", [False, True])
def test_equals_its_twin(nesterov):
    w, optimizer = tf.Variable(tf.zeros(SHAPE)), make(learning_rate=0.5, nesterov=nesterov)
    steps, chosen_of = gradients_of(0, 6), []
    for gradient in steps:
        before = w.numpy()
        apply(optimizer, [gradient], [w])
        chosen_of.append(w.numpy() != before)
    assert 0.05 < np.mean(chosen_of) < 0.14
    expected_w, u, v = twin([g.numpy() for g in steps], 0.9, 0.5, nesterov, chosen_of)
    np.testing.assert_allclose(w.numpy(), expected_w, atol=1e-5)
    np.testing.assert_allclose(kept(optimizer, w, "velocity"), u, atol=1e-5)
    np.testing.assert_allclose(kept(optimizer, w), v, atol=1e-5)


def test_golden_steps():
    """Worked out by hand: of four elements one is sent, with m = 0.5 and g = (4, 3, 2, 1) in each step.

    ```
    step   u                      v                          sent
    1      4     3     2     1    4      3      2      1     0
    2      4     4.5   3     1.5  4      7.5    5      2.5   1
    3      6     3     3.5   1.75 10     3      8.5    4.25  0
    4      4     4.5   3.75  1.9  4      7.5    12.25  6.1   2
    5      6     5.25  2     1.9  10     12.75  2      8.1   1
    ```
    """
    w, optimizer = tf.Variable(tf.zeros([2, 2])), make(momentum=0.5, sparsity=0.75)
    steps = []
    for _ in range(5):
        apply(optimizer, [tf.constant([[4.0, 3.0], [2.0, 1.0]])], [w])
        steps.append((-w.numpy()).reshape(-1).tolist())
    assert steps == [[4, 0, 0, 0], [4, 7.5, 0, 0], [14, 7.5, 0, 0], [14, 7.5, 12.25, 0], [14, 20.25, 12.25, 0]]


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 2**31),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.sampled_from([0.0, 0.9]),
    st.sampled_from(["float32", "float16"]),
    st.sampled_from([1e-6, 1.0, 1e4]),
)
def test_sent_and_kept_are_gradient_and_kept_before(seed, sparsity, momentum, values, scale):
    w, optimizer = tf.Variable(tf.zeros(SHAPE)), make(momentum=momentum, sparsity=sparsity, values=values)
    velocity, residual = np.zeros(SHAPE), np.zeros(SHAPE)
    for gradient in gradients_of(seed, 4):
        before = w.numpy().astype(np.float64)
        apply(optimizer, [scale * gradient], [w])
        sent = before - w.numpy()
        velocity = momentum * velocity + scale * gradient.numpy()
        tolerance = 1e-5 * max(np.abs(residual + velocity).max(), np.abs(before).max())
        np.testing.assert_allclose(sent + kept(optimizer, w), residual + velocity, atol=tolerance)
        velocity, residual = kept(optimizer, w, "velocity").astype(np.float64), kept(optimizer, w).astype(np.float64)


@pytest.mark.parametrize("nesterov", [False, True])
def test_nothing_left_out_is_momentum_sgd(nesterov):
    ours, theirs = tf.Variable(tf.ones(SHAPE)), tf.Variable(tf.ones(SHAPE))
    dgc = make(learning_rate=0.1, sparsity=0.0, nesterov=nesterov, weight_decay=0.01)
    sgd = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    for gradient in gradients_of(1, 8):
        apply(dgc, [gradient], [ours])
        apply(sgd, [gradient], [theirs])
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)


def test_small_variables_and_those_of_one_dimension_are_dense():
    variables = [tf.Variable(tf.zeros(shape)) for shape in ((30, 20), (600,), (10, 10))]
    optimizer = make(momentum=0.0, dense_below=200)
    apply(optimizer, [tf.random.stateless_normal(v.shape, (1, 2)) for v in variables], variables)
    changed = [float(np.mean(v.numpy() != 0)) for v in variables]
    assert changed[0] < 0.14
    assert changed[1:] == [1, 1]


def test_what_is_not_finite_is_sent_and_not_kept():
    w, optimizer = tf.Variable(tf.zeros(SHAPE)), make(momentum=0.0)
    gradient = gradients_of(8, 1)[0].numpy()
    gradient[3, 4], gradient[5, 6] = np.inf, np.nan
    apply(optimizer, [tf.constant(gradient)], [w])
    assert np.isfinite(kept(optimizer, w)).all()
    assert not np.isfinite(w.numpy()[[3, 5], [4, 6]]).any()


def test_the_sample_moves_with_the_steps(monkeypatch):
    offsets, plain = [], dgc.select
    monkeypatch.setattr(dgc, "select", lambda *arguments: offsets.append(int(arguments[-1])) or plain(*arguments))
    w, optimizer = tf.Variable(tf.zeros(SHAPE)), make()
    for gradient in gradients_of(7, 3):
        apply(optimizer, [gradient], [w])
    assert offsets == [0, 1, 2]


def test_the_ramp():
    w, optimizer = tf.Variable(tf.zeros((100, 100))), make(momentum=0.0, sparsity=0.99, rampup=(0.0, 0.5, 0.9), rampup_steps=2)
    traces = []

    @tf.function
    def step(gradient):
        traces.append(None)
        optimizer.apply_gradients([(gradient, w)])

    optimizer.build([w])
    changed = []
    for gradient in gradients_of(2, 8, (100, 100)):
        before = w.numpy()
        step(gradient)
        changed.append(float(np.mean(w.numpy() != before)))
    np.testing.assert_allclose(changed, [1, 1, 0.5, 0.5, 0.1, 0.1, 0.01, 0.01], rtol=0.4)
    assert len(traces) == 1


def test_slices():
    w, optimizer = tf.Variable(tf.zeros((10, 2))), make(momentum=0.0, sparsity=0.5)
    gradient = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([3, 7]), tf.constant([10, 2]))
    apply(optimizer, [gradient], [w])
    np.testing.assert_array_equal(w.numpy()[[3, 7]], [[-1, -2], [-3, -4]])


@pytest.mark.parametrize(("kwargs", "norm"), [({"clipnorm": 0.5}, 0.5), ({"global_clipnorm": 0.25}, 0.25)])
def test_clipping(kwargs, norm):
    w, optimizer = tf.Variable(tf.zeros(SHAPE)), make(momentum=0.0, sparsity=0.0, **kwargs)
    apply(optimizer, gradients_of(3, 1), [w])
    assert np.linalg.norm(w.numpy()) == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sparsity": 1.0}, "Received: sparsity=1.0"),
        ({"rampup": (0.9, 0.5)}, "`rampup` must rise"),
        ({"momentum": -0.1}, r"`momentum` must be a number in \[0, 1\). Received: momentum=-0.1"),
        ({"dense_below": -1}, "Received: dense_below=-1"),
        ({"values": "int8"}, r"must be one of \['float32', 'float16'\]. Received: values='int8'"),
        ({"clipnorm": -1.0}, "Received: clipnorm=-1.0"),
        ({"clipnorm": 1.0, "global_clipnorm": 1.0}, "not both"),
        ({"clipvalue": 1.0}, "DGC clips by norm"),
        ({"learning_rate": 1}, "Received: learning_rate=1"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        DGC(**arguments)


def step_under(strategy, optimizer, w):
    """A traced step in which each replica has the gradient of its number."""

    def replica(gradients):
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        optimizer.apply_gradients([(tf.gather(gradients, number), w)])

    return tf.function(lambda gradients: strategy.run(replica, (gradients,)))


def total_kept(strategy, optimizer, w):
    own = kept(optimizer, w)
    return strategy._communicator.gather_array(own[None]).sum(0)


@on_ranks(Layout(1, 2), Layout(2, 1, "mpi"), Layout(2, 2, "horovod"), Layout(4, 1, "mpi"))
def test_over_ranks_nothing_is_lost():
    strategy = HierarchicalStrategy()
    replicas = strategy.num_replicas_in_sync
    for sparsity, values in ((0.9, "float32"), (0.9, "float16"), (0.5, "float32")):
        with strategy.scope():
            w, optimizer = tf.Variable(tf.zeros(SHAPE)), make(momentum=0.0, sparsity=sparsity, values=values)
            optimizer.build([w])
        step = step_under(strategy, optimizer, w)
        expected = np.zeros(SHAPE)
        for gradients in gradients_of(4, 4, (replicas, *SHAPE)):
            step(gradients)
            expected -= gradients.numpy().sum(0)
            weights = strategy.experimental_local_results(w)
            np.testing.assert_allclose(weights[0].numpy() - total_kept(strategy, optimizer, w), expected, atol=1e-4)
            for copy in weights:  # the same bits everywhere
                everywhere = strategy._communicator.gather_array(copy.numpy()[None])
                assert (everywhere == weights[0].numpy()).all()
        assert (total_kept(strategy, optimizer, w) == 0).all() == (1 - sparsity >= 1 / strategy.size)
    # What each rank has is clipped to the norm over the square root of their number.
    with strategy.scope():
        w, optimizer = tf.Variable(tf.zeros(SHAPE)), make(momentum=0.0, sparsity=0.0, clipnorm=0.5)
        optimizer.build([w])
    step_under(strategy, optimizer, w)(tf.ones((replicas, *SHAPE)))
    assert np.linalg.norm(strategy.experimental_local_results(w)[0].numpy()) == pytest.approx(0.5 * strategy.size**0.5, rel=1e-5)


@on_ranks(Layout(1, 1), Layout(2, 1, "mpi"), Layout(4, 1, "mpi"))
def test_decay_is_that_of_the_dense_run():
    """Also of weights that have no gradient (the decay of several implementations went the way of the gradient)."""
    strategy = HierarchicalStrategy()
    x, y = np.ones((16, 400), "float32"), np.zeros((16, 1), "float32")
    x[:, 200:] = 0
    weights = {}
    for name, optimizer in {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.01),
        "dense": lambda: make(learning_rate=0.1, sparsity=0.0, weight_decay=0.01),
        "sparse": lambda: make(learning_rate=0.1, sparsity=0.99, weight_decay=0.01),
    }.items():
        with strategy.scope():
            layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
            model = keras.Sequential([keras.Input((400,)), layer])
            model.compile(optimizer(), lambda t, p: 1e-3 * p[:, 0])
        model.fit(x, y, batch_size=16, epochs=30, verbose=0)
        weights[name] = model.get_weights()[0][:, 0]
    np.testing.assert_allclose(weights["dense"], weights["sgd"], atol=1e-5)
    np.testing.assert_allclose(weights["sparse"][200:], weights["sgd"][200:], atol=1e-5)
    assert weights["sgd"][0] < weights["sparse"][:200].mean() < weights["sgd"][-1]


class Said(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(f"{record.levelname}: {record.getMessage()}")


@on_ranks(Layout(2, 1, "mpi"))
def test_files_hold_what_a_rank_keeps():
    strategy, said = HierarchicalStrategy(), Said()
    logging.getLogger("tfdist.optimizers.state_of_rank").addHandler(said)
    with strategy.scope():
        w, optimizer, loaded = tf.Variable(tf.zeros(SHAPE)), make(), make()
        optimizer.build([w])
        loaded.build([w])
    step_under(strategy, optimizer, w)(gradients_of(5, 1, (2, *SHAPE))[0])
    mine = kept(optimizer, w)
    store = {}
    optimizer.save_own_variables(store)
    loaded.load_own_variables(store)
    np.testing.assert_array_equal(kept(loaded, w), mine)
    np.testing.assert_array_equal(kept(loaded, w, "velocity"), kept(optimizer, w, "velocity"))
    assert not said.lines
    # One file for all: what the other rank kept is dropped, what this one kept is there once.
    variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    strategy.extended.broadcast_variables([unwrap(variable) for variable in variables])
    np.testing.assert_array_equal(kept(optimizer, w), mine)
    of_rank_0 = {key: strategy._communicator.broadcast_array(np.asarray(value)) for key, value in store.items()}
    loaded.load_own_variables(of_rank_0)
    assert [line[:40] for line in said.lines] == ["WARNING: What rank 0 of 2 had not sent g"] * strategy.rank
    total = total_kept(strategy, loaded, w)
    np.testing.assert_array_equal(total, strategy._communicator.broadcast_array(mine))


def test_tensorflow_strategies_with_several_processes_are_refused():
    class Extended:
        def _in_multi_worker_mode(self):
            return True

    class SeveralProcesses:
        extended = Extended()

    with pytest.raises(ValueError, match=r"needs tfdist.HierarchicalStrategy .* Received: SeveralProcesses"):
        ranks_of(SeveralProcesses())
