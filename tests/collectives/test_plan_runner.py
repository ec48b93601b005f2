import numpy as np
import pytest

from tests.collectives.threads import inputs
from tests.collectives.threads import run_ranks
from tfdist.collectives.algorithms import PLANS
from tfdist.collectives.plan_runner import PlanRunner
from tfdist.collectives.planned_sum import PlannedSum
from tfdist.collectives.ring import ring


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("hosts", [[[0, 1]], [[0], [1], [2]], [[0, 1], [2, 3]], [[0, 1, 2], [3, 4, 5]]], ids=str)
def test_every_plan_sums_on_every_rank(name, hosts):
    size = sum(map(len, hosts))
    for length, chunk_bytes in ((0, 64), (1, 64), (101, 64), (101, 2**20)):
        arrays = inputs(size, length)

        def run(transport, length=length, chunk_bytes=chunk_bytes, arrays=arrays):
            runner = PlanRunner(transport, chunk_bytes)
            array = arrays[transport.rank].copy()
            runner.run(runner.compile(PLANS[name](hosts, length), 4), array)
            return array

        results, _ = run_ranks(size, run)
        assert all((result == arrays.sum(0)).all() for result in results)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
def test_dtypes_and_order_of_additions(dtype):
    """All ranks get the same bytes, since each element is added up in one place."""
    arrays = np.random.default_rng(0).normal(0, 1000, (4, 1001)).astype(dtype)

    def run(transport):
        total = PlannedSum(PlanRunner(transport, 256), lambda length, itemsize: ring(4, length))
        return total(arrays[transport.rank].copy())

    results, _ = run_ranks(4, run)
    assert len({result.tobytes() for result in results}) == 1
    np.testing.assert_allclose(results[0], arrays.sum(0), rtol=1e-4)


def test_bytes_and_chunks_on_the_wire():
    def run(transport):
        runner = PlanRunner(transport, chunk_bytes=400)
        runner.run(runner.compile(ring(2, 1000), 4), np.ones(1000, np.float32))

    _, transports = run_ranks(2, run)
    assert [t.sent_bytes for t in transports] == [4000, 4000]
    assert [t.messages for t in transports] == [10, 10]


def test_what_is_not_a_number_is_seen_by_all():
    arrays = np.zeros((3, 8), np.float32)
    arrays[1, 0], arrays[0, 1], arrays[0, 2], arrays[2, 2] = np.nan, np.inf, np.inf, -np.inf

    def run(transport):
        runner = PlanRunner(transport)
        array = arrays[transport.rank].copy()
        runner.run(runner.compile(ring(3, 8), 4), array)
        return array

    for result in run_ranks(3, run)[0]:
        assert np.isnan(result[0])
        assert result[1] == np.inf
        assert np.isnan(result[2])
        assert (result[3:] == 0).all()


def test_a_plan_for_other_ranks_sends_nothing():
    def run(transport):
        with pytest.raises(ValueError, match="a plan for 3 ranks, run by 2"):
            PlanRunner(transport).compile(ring(3, 8), 4)

    _, transports = run_ranks(2, run)
    assert [t.messages for t in transports] == [0, 0]


def test_rows_are_exchanged():
    def run(transport):
        outgoing = 10 * transport.rank + np.repeat(np.arange(3, dtype=np.float32), 5).reshape(3, 5)
        incoming = np.full((3, 5), -1, np.float32)
        PlanRunner(transport, chunk_bytes=8).exchange(outgoing, incoming)
        return incoming[:, [0, -1]].tolist()

    results, _ = run_ranks(3, run)
    assert results[0] == [[-1, -1], [10, 10], [20, 20]]
    assert results[1] == [[1, 1], [-1, -1], [21, 21]]
