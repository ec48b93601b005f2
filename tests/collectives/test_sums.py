"""Sums between processes: every algorithm and every compressor, on the engines that have them."""

import os
import socket
import time

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.harness import Layout
from tests.harness import on_ranks
from tfdist.collectives.algorithms import PLANS
from tfdist.compression import COMPRESSORS

SHAPES = ((300, 40), (7,), (), (64, 129))


def place_ranks(monkeypatch, per_host):
    """Makes each few ranks believe that they are on a host of their own."""
    rank = next(int(os.environ[name]) for name in ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK") if name in os.environ)
    monkeypatch.setattr(socket, "gethostname", lambda: f"host{rank // per_host}")


def sum_gradients(strategy, gradients, steps=1):
    """What an optimizer gets: the sum over replicas of each replica's gradients, for some steps."""

    def replica():
        context = tf.distribute.get_replica_context()
        mine = [tf.gather(gradient, context.replica_id_in_sync_group) for gradient in gradients]
        return context.all_reduce("SUM", mine)

    traced = tf.function(lambda: strategy.run(replica))
    results = []
    for _ in range(steps):
        sums = traced()
        results.append([strategy.experimental_local_results(total)[-1].numpy() for total in sums])
    return results


def random_gradients(strategy, scale=1.0):
    generator = np.random.default_rng(1)
    replicas = strategy.num_replicas_in_sync
    return [tf.constant(generator.normal(0, scale, (replicas, *shape)).astype("float32")) for shape in SHAPES]


def check_sums(strategy, rtol):
    gradients = random_gradients(strategy)
    for sums in sum_gradients(strategy, gradients, steps=2):
        for total, gradient in zip(sums, gradients, strict=True):
            np.testing.assert_allclose(total, gradient.numpy().sum(0), rtol=rtol, atol=rtol)
        digest = np.frombuffer(b"".join(total.tobytes() for total in sums), np.uint8).astype(np.int64).sum()
        assert len(set(strategy._agreement.meet("compare digests", int(digest)))) == 1


@on_ranks(Layout(4, 1, "mpi"))
def test_every_algorithm():
    for algorithm in ("auto", "engine", *PLANS):
        check_sums(tfdist.HierarchicalStrategy(algorithm=algorithm, fusion_bytes=20_000), 1e-5)


# For int8: twice, since the error of the step before is added, half a step of each rank's part (6 / 126) and of the sum (12 / 126).
TOLERANCES = (("none", 1e-5), ("fp16", 4e-3), ("bf16", 3e-2), ("int8", 0.3))


@on_ranks(Layout(3, 2, "mpi"), Layout(2, 2, "horovod"))
def test_compression():
    with pytest.MonkeyPatch.context() as monkeypatch:
        place_ranks(monkeypatch, per_host=1)
        for compression, tolerance in TOLERANCES:
            strategy = tfdist.HierarchicalStrategy(compression=compression)
            check_sums(strategy, tolerance)
            check_special_values(strategy)
            check_range(strategy)


@on_ranks(Layout(4, 1, "mpi"), Layout(4, 1, "horovod"))
def test_compression_between_hosts_with_several_ranks():
    with pytest.MonkeyPatch.context() as monkeypatch:
        place_ranks(monkeypatch, per_host=2)
        for compression, tolerance in TOLERANCES:
            strategy = tfdist.HierarchicalStrategy(compression=compression)
            assert strategy.topology.num_hosts == 2
            check_sums(strategy, tolerance)


@on_ranks(Layout(2, 1, "mpi"))
def test_nothing_is_compressed_inside_a_host():
    check_sums(tfdist.HierarchicalStrategy(compression="int8"), 1e-5)


def check_special_values(strategy):
    gradients = random_gradients(strategy)
    special = gradients[0].numpy()
    special[0, 0, :3] = np.nan, np.inf, -np.inf
    special[-1, 1, 0] = np.nan
    (sums,) = sum_gradients(strategy, [tf.constant(special), *gradients[1:]])
    assert np.isnan(sums[0][0, 0])
    assert np.isnan(sums[0][1, 0])
    assert sums[0][0, 1] == np.inf
    assert sums[0][0, 2] == -np.inf
    assert np.isfinite(sums[0][2:]).all()
    assert np.isfinite(sums[3]).all()
    # Nothing of it is left for the next step, in what a compressor keeps.
    (after,) = sum_gradients(strategy, gradients)
    assert all(np.isfinite(total).all() for total in after)


def check_range(strategy):
    """The mean fits into a half, the sum does not (horovod#1699)."""
    large = tf.fill((strategy.num_replicas_in_sync, 300, 40), 4e4)
    # Of replicas of one process the sum is taken before.
    (sums,) = sum_gradients(strategy, [large / strategy.extended._num_replicas_in_sync * strategy.size])
    np.testing.assert_allclose(sums[0], 4e4 * strategy.size, rtol=1e-2)


@on_ranks(Layout(2, 1, "mpi"))
def test_what_int8_does_not_send_is_sent_later():
    """Sent + kept == gradient + kept before: over many steps, what arrives is what was to be sent."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        place_ranks(monkeypatch, per_host=1)
        strategy = tfdist.HierarchicalStrategy(compression="int8")
    gradients = random_gradients(strategy)
    exact = gradients[0].numpy().sum(0)
    steps = sum_gradients(strategy, gradients, steps=40)
    first_error = np.abs(steps[0][0] - exact).max()
    mean_error = np.abs(np.mean([sums[0] for sums in steps], axis=0) - exact).max()
    assert first_error > 1e-3
    assert mean_error < first_error / 10
    (kept,) = strategy.extended._kept_outside.values()
    (bucket,) = kept.values()
    assert set(bucket) == {"rows", "total"}
    sent = np.sum([sums[0] for sums in steps], axis=0)
    owed = strategy._communicator.gather_array(bucket["rows"].numpy()[None]).sum(0).ravel()
    owed = owed + strategy._communicator.gather_array(bucket["total"].numpy()).ravel()
    # A bucket begins with the last tensor; the first one follows the others, each of which fills a multiple of 16 elements.
    start = sum(-(-int(np.prod(shape)) // 16) * 16 for shape in SHAPES[1:])
    np.testing.assert_allclose(sent + owed[start : start + exact.size].reshape(exact.shape), 40 * exact, atol=2e-3)


@on_ranks(Layout(2, 1, "horovod"), Layout(3, 1, "horovod"))
def test_horovod_by_host():
    check_sums(tfdist.HierarchicalStrategy(algorithm="hierarchical", fusion_bytes=20_000), 1e-5)
    check_sums(tfdist.HierarchicalStrategy(algorithm="engine"), 1e-5)
    with pytest.raises(ValueError, match=r"can sum by \['auto', 'engine', 'hierarchical'\].*Received: algorithm='ring'"):
        tfdist.HierarchicalStrategy(algorithm="ring")


@on_ranks(Layout(4, 1, "horovod"))
def test_horovod_that_the_script_has_started():
    import horovod.tensorflow as hvd

    hvd.init()
    with pytest.MonkeyPatch.context() as monkeypatch:
        place_ranks(monkeypatch, per_host=2)
        check_sums(tfdist.HierarchicalStrategy(), 1e-5)
        with pytest.raises(ValueError, match="Make the strategy before `hvd.init"):
            tfdist.HierarchicalStrategy(compression="bf16")


@on_ranks(Layout(3, 1, "mpi"), Layout(3, 1, "horovod"))
def test_buckets_that_are_ready_in_another_order_on_each_rank():
    strategy = tfdist.HierarchicalStrategy(fusion_bytes=0)
    zero = tf.Variable(0)  # TensorFlow would compute constants once, before the step

    def late(number):
        # The stage of each gradient differs from rank to rank; the first bucket is the last to be ready on rank 0.
        time.sleep(0.1 * ((int(number) + strategy.rank) % 4))
        return np.float32(number)

    def replica():
        numbers = [tf.numpy_function(late, [zero + n], tf.float32, stateful=False) for n in range(4)]
        gradients = [tf.fill([5000], tf.ensure_shape(number, [])) for number in numbers]
        return tf.distribute.get_replica_context().all_reduce("SUM", gradients)

    step = tf.function(lambda: strategy.run(replica))
    for _ in range(3):
        assert [float(total[0]) for total in step()] == [0, 3, 6, 9]


@on_ranks(Layout(2, 1, "mpi"))
def test_ranks_that_want_different_things():
    for setting, values in (("algorithm", ("auto", "ring")), ("fusion_bytes", (1, 2)), ("compression", ("fp16", None))):
        rank = tfdist.HierarchicalStrategy().rank
        with pytest.raises(tfdist.RankMismatchError, match=f"{setting}.* on rank 0.* on rank 1"):
            tfdist.HierarchicalStrategy(**{setting: values[rank]})


def test_known_compressors():
    assert list(COMPRESSORS) == ["none", "fp16", "bf16", "int8"]
