"""All plans: the result is the sum, and rounds, messages and elements are those of the formulas."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st

from tfdist.collectives.algorithms import names_for
from tfdist.collectives.algorithms import PLANS
from tfdist.collectives.binary_blocks import binary_blocks
from tfdist.collectives.binary_blocks import blocks
from tfdist.collectives.halving_doubling import halving_doubling
from tfdist.collectives.halving_doubling import shard_of
from tfdist.collectives.hierarchical import hierarchical
from tfdist.collectives.hierarchical import hierarchical_master
from tfdist.collectives.hybrid import hybrid
from tfdist.collectives.plan import Plan
from tfdist.collectives.ring import ring

SIZES = (*range(1, 18), 600)
FLAT = {"ring": ring, "halving_doubling": halving_doubling, "binary_blocks": binary_blocks}


def run(plan, arrays):
    """Runs a plan on a copy of each rank's array, as the definition of a plan says."""
    arrays = np.array(arrays)
    for transfers in plan:
        sent = [arrays[t["source"], t["start"] : t["stop"]].copy() for t in transfers]
        for transfer, values in zip(transfers, sent, strict=True):
            target = arrays[transfer["destination"], transfer["start"] : transfer["stop"]]
            target[:] = target + values if transfer["add"] else values
    return arrays


def inputs(size, length):
    return np.random.default_rng(length).integers(-1000, 1000, (size, length))


def elements(plan):
    return sum(int((transfers["stop"] - transfers["start"]).sum()) for transfers in plan)


def messages(plan):
    return sum(len(transfers) for transfers in plan)


def lengths(size):
    return (0, 1, max(size - 1, 0), size, 2 * size + 1, 97)


def hosts_of(size, per_host):
    return [list(range(first, first + per_host)) for first in range(0, size, per_host)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FLAT)
def test_flat_plans_sum(name, size):
    for length in lengths(size):
        arrays = inputs(size, length)
        assert (run(FLAT[name](size, length), arrays) == arrays.sum(0)).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", PLANS)
def test_plans_on_hosts_sum(name, size):
    for per_host in {8} if size == 600 else {k for k in (1, 2, 3, 4, size) if size % k == 0}:
        for length in (1, 601) if size == 600 else lengths(size):
            arrays = inputs(size, length)
            assert (run(PLANS[name](hosts_of(size, per_host), length), arrays) == arrays.sum(0)).all()


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 40), st.randoms())
@settings(max_examples=60, deadline=None)
def test_any_hosts_sum(counts, length, random):
    ranks = list(range(sum(counts)))
    random.shuffle(ranks)
    hosts = [[ranks.pop() for _ in range(count)] for count in counts]
    for name in names_for(hosts):
        arrays = inputs(sum(counts), length)
        assert (run(PLANS[name](hosts, length), arrays) == arrays.sum(0)).all(), name


@pytest.mark.parametrize("size", SIZES)
def test_cost_of_the_ring(size):
    for length in lengths(size):
        plan = ring(size, length)
        assert len(plan.rounds()) == 2 * (size - 1)
        assert elements(plan) == 2 * (size - 1) * length
        if length >= size:
            assert messages(plan) == 2 * (size - 1) * size


@pytest.mark.parametrize("size", SIZES)
def test_cost_of_halving_doubling(size):
    log = size.bit_length() - 1
    q, extra = 2**log, size - 2**log
    for length in lengths(size):
        plan = halving_doubling(size, length)
        assert len(plan.rounds()) == 2 * log + 2 * bool(extra)
        assert elements(plan) == 2 * (q - 1) * length + 2 * extra * length
        if length >= size:
            assert messages(plan) == 2 * q * log + 2 * extra


@pytest.mark.parametrize("size", SIZES)
def test_cost_of_binary_blocks(size):
    sizes = blocks(size)
    assert sum(sizes) == size
    log = size.bit_length() - 1
    for length in lengths(size):
        plan = binary_blocks(size, length)
        assert len(plan.rounds()) == 2 * log + 2 * (len(sizes) > 1)
        assert elements(plan) == 2 * (size - 1) * length
        if length >= size:
            between = sum(sizes[:-1])
            assert messages(plan) == 2 * sum(block * (block.bit_length() - 1) for block in sizes) + 2 * between


@pytest.mark.parametrize(("size", "per_host"), [(4, 2), (6, 3), (8, 4), (12, 2), (16, 1), (16, 16), (600, 8)])
def test_cost_of_hierarchical_plans(size, per_host):
    hosts, num_hosts = hosts_of(size, per_host), size // per_host
    for length in (0, 1, 7, 24 * size):
        parts = hierarchical(hosts, length)
        masters = hierarchical_master(hosts, length)
        assert len(parts.rounds()) == 2 * (per_host - 1) + 2 * (num_hosts - 1)
        assert len(masters.rounds()) == 4 * (per_host - 1) + 2 * (num_hosts - 1)
        across = 2 * (num_hosts - 1) * length
        assert elements(parts) == 2 * (per_host - 1) * length * num_hosts + across
        # In each host: ring, gather, scatter, ring. The master has its own shard already.
        own = sum(length * 1 // per_host for _ in hosts)
        assert elements(masters) == 2 * (per_host - 1) * length * num_hosts + 2 * (length * num_hosts - own) + across


def test_published_rounds():
    # Jia et al. 2018: 1024 ranks, 16 a host, and 2048.
    for size, flat, grouped in ((1024, 2046, 186), (2048, 4094, 314)):
        assert len(list(ring(size, 0))) == flat
        assert len(list(hierarchical_master(hosts_of(size, 16), 0))) == grouped
    # Step counts of Rabenseifner's algorithm.
    assert [len(list(halving_doubling(p, 0))) for p in (8, 16, 64, 1024, 2048)] == [6, 8, 12, 20, 22]


@pytest.mark.parametrize("size", [8, 16, 64])
def test_each_rank_sends_alike(size):
    for plan in (ring(size, 64 * size), halving_doubling(size, 64 * size), hierarchical(hosts_of(size, 4), 64 * size)):
        sent = np.zeros(size, np.int64)
        for transfers in plan:
            np.add.at(sent, transfers["source"], transfers["stop"] - transfers["start"])
        assert set(sent.tolist()) == {2 * (size - 1) * 64}


@pytest.mark.parametrize("name", PLANS)
def test_what_a_rank_receives_in_a_round_it_does_not_send_then(name):
    for size in (2, 3, 4, 6, 7, 12):
        for transfers in PLANS[name](hosts_of(size, 1 if size % 2 else 2), 101):
            for sent in transfers:
                for received in transfers[transfers["destination"] == sent["source"]]:
                    overlap = min(sent["stop"], received["stop"]) - max(sent["start"], received["start"])
                    assert overlap <= 0


def test_a_host_sends_no_more_than_the_wire_needs():
    hosts, length = hosts_of(8, 4), 800
    for plan in (hierarchical(hosts, length), hierarchical_master(hosts, length), PLANS["halving_doubling"](hosts, length)):
        leaving = sum(
            int((t["stop"] - t["start"]) * (t["source"] // 4 == 0 and t["destination"] // 4 == 1)) for r in plan for t in r
        )
        assert leaving == 2 * length * (1 - 4 / 8)


def test_literal_plans():
    assert [r.tolist() for r in ring(3, 3)] == [
        [(0, 1, 2, 3, True), (1, 2, 0, 1, True), (2, 0, 1, 2, True)],
        [(0, 1, 1, 2, True), (1, 2, 2, 3, True), (2, 0, 0, 1, True)],
        [(0, 1, 0, 1, False), (1, 2, 1, 2, False), (2, 0, 2, 3, False)],
        [(0, 1, 2, 3, False), (1, 2, 0, 1, False), (2, 0, 1, 2, False)],
    ]
    assert [r.tolist() for r in halving_doubling(4, 4)] == [
        [(0, 1, 2, 4, True), (1, 0, 0, 2, True), (2, 3, 2, 4, True), (3, 2, 0, 2, True)],
        [(0, 2, 1, 2, True), (1, 3, 3, 4, True), (2, 0, 0, 1, True), (3, 1, 2, 3, True)],
        [(0, 2, 0, 1, False), (1, 3, 2, 3, False), (2, 0, 1, 2, False), (3, 1, 3, 4, False)],
        [(0, 1, 0, 2, False), (1, 0, 2, 4, False), (2, 3, 0, 2, False), (3, 2, 2, 4, False)],
    ]
    assert [r.tolist() for r in halving_doubling(3, 2)] == [
        [(0, 1, 0, 2, True)],
        [(1, 2, 1, 2, True), (2, 1, 0, 1, True)],
        [(1, 2, 0, 1, False), (2, 1, 1, 2, False)],
        [(1, 0, 0, 2, False)],
    ]
    assert [sorted(r.tolist()) for r in binary_blocks(3, 2)] == [
        [(0, 1, 1, 2, True), (1, 0, 0, 1, True)],
        [(2, 0, 0, 1, True), (2, 1, 1, 2, True)],
        [(0, 2, 0, 1, False), (1, 2, 1, 2, False)],
        [(0, 1, 0, 1, False), (1, 0, 1, 2, False)],
    ]
    assert [sorted(r.tolist()) for r in hierarchical([[0, 1], [2, 3]], 4)] == [
        [(0, 1, 2, 4, True), (1, 0, 0, 2, True), (2, 3, 2, 4, True), (3, 2, 0, 2, True)],
        [(0, 2, 1, 2, True), (1, 3, 3, 4, True), (2, 0, 0, 1, True), (3, 1, 2, 3, True)],
        [(0, 2, 0, 1, False), (1, 3, 2, 3, False), (2, 0, 1, 2, False), (3, 1, 3, 4, False)],
        [(0, 1, 0, 2, False), (1, 0, 2, 4, False), (2, 3, 0, 2, False), (3, 2, 2, 4, False)],
    ]
    assert [sorted(r.tolist()) for r in hierarchical_master([[0, 1], [2]], 2)] == [
        [(0, 1, 1, 2, True), (1, 0, 0, 1, True)],
        [(1, 0, 1, 2, False)],
        [(0, 2, 1, 2, True), (2, 0, 0, 1, True)],
        [(0, 2, 0, 1, False), (2, 0, 1, 2, False)],
        [(0, 1, 1, 2, False)],
        [(0, 1, 0, 1, False), (1, 0, 1, 2, False)],
    ]


def test_one_rank_sends_nothing():
    for name, plan in PLANS.items():
        assert messages(plan([[0]], 5)) == 0, name


def test_hybrid_switches_at_its_threshold():
    hosts = hosts_of(4, 2)
    assert [r.tolist() for r in hybrid(hosts, 8, 8)] == [r.tolist() for r in hierarchical_master(hosts, 8)]
    assert [r.tolist() for r in hybrid(hosts, 9, 8)] == [r.tolist() for r in ring(4, 9)]


def test_the_order_of_shards():
    assert shard_of(np.arange(1), 1).tolist() == [0]
    assert sorted(shard_of(np.arange(16), 16).tolist()) == list(range(16))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Plan(0, 1, lambda: iter([])), "Received: size=0, length=1"),
        (lambda: ring(2, -1), "length=-1"),
        (lambda: hierarchical([[0, 1], [2]], 4), r"Received: ranks a host=\[2, 1\]"),
        (lambda: hybrid([[0]], 4, -1), "Received: threshold=-1"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
