import numpy as np
import pytest

from tfdist.collectives.algorithms import PLANS
from tfdist.collectives.choice import choose
from tfdist.collectives.choice import predict_s
from tfdist.collectives.choice import profile_of
from tfdist.collectives.cost import Link
from tfdist.collectives.cost import Network
from tfdist.collectives.cost import overlapped_s
from tfdist.collectives.cost import profile
from tfdist.collectives.ring import ring

# One rank a host, additions for nothing: the formulas have alpha and beta only.
ALPHA, BETA = 1e-4, 1e-8
WIRE = Network(Link(1e-5, 1e10), Link(ALPHA, 1 / BETA), add_bytes_per_s=1e30)


def hosts(count, per_host=1):
    return tuple(tuple(range(first, first + per_host)) for first in range(0, count * per_host, per_host))


@pytest.mark.parametrize("p", [2, 8, 16, 64])
@pytest.mark.parametrize("n", [64, 10**6, 10**8])
def test_formulas(p, n):
    times_s = predict_s(hosts(p), n, WIRE)
    moved_s = 2 * (p - 1) / p * n * BETA
    assert times_s["ring"] == pytest.approx(2 * (p - 1) * ALPHA + moved_s)
    assert times_s["halving_doubling"] == pytest.approx(2 * np.log2(p) * ALPHA + moved_s)
    assert times_s["binary_blocks"] == pytest.approx(times_s["halving_doubling"])


def test_formula_of_the_fold():
    n, p, q = 10**7, 6, 4
    expected = 2 * np.log2(q) * ALPHA + 2 * ALPHA + (2 * (q - 1) / q + 2) * n * BETA
    assert predict_s(hosts(p), n, WIRE)["halving_doubling"] == pytest.approx(expected)


@pytest.mark.parametrize(("num_hosts", "k"), [(2, 2), (8, 4), (64, 16)])
def test_formulas_of_hierarchical_plans(num_hosts, k):
    n, p = 1.6e7, num_hosts * k
    inside_s, out_s = 1e-10, BETA
    parts = 2 * (k - 1) * (1e-5 + n / k * inside_s) + 2 * (num_hosts - 1) * (ALPHA + n / num_hosts * out_s)
    masters = 4 * (k - 1) * (1e-5 + n / k * inside_s) + 2 * (num_hosts - 1) * (ALPHA + n / num_hosts * out_s)
    times_s = predict_s(hosts(num_hosts, k), n, WIRE)
    assert times_s["hierarchical"] == pytest.approx(parts)
    assert times_s["hierarchical_master"] == pytest.approx(masters)
    assert profile_of("hierarchical", hosts(num_hosts, k)).across.sum() == pytest.approx(2 * (1 - k / p))


def test_additions_are_hidden_but_for_the_last_chunk():
    network = Network(Link(0, 1e9), Link(0, 1e9), add_bytes_per_s=2e9, chunk_bytes=1000)
    assert profile(ring(2, 8), [[0], [1]]).time_s(1e6, network) == pytest.approx(2 * 0.5e6 / 1e9 + 1000 / 2e9)
    slow = Network(Link(0, 1e9), Link(0, 1e9), add_bytes_per_s=0.5e9, chunk_bytes=1000)
    assert profile(ring(2, 8), [[0], [1]]).time_s(1e6, slow) == pytest.approx(0.5e6 / 0.5e9 + 0.5e6 / 1e9 + 1000 / 0.5e9)


def test_ranks_of_a_host_share_its_link():
    crossing = profile(ring(4, 4), [[0, 2], [1, 3]])
    assert crossing.across.tolist() == [0.5] * 6


def test_the_choice():
    slow_start = Network(Link(1e-5, 1e10), Link(1e-3, 1e9), 1e10)
    assert choose(hosts(64), 1000, slow_start) == "halving_doubling"
    assert choose(hosts(2), 10**6, slow_start) == "ring"
    uneven = ((0, 1, 2), (3,))
    assert choose(uneven, 10**8, Network(Link(1e-6, 1e11), Link(1e-3, 1e8), 1e11)) in PLANS
    assert "hierarchical" not in predict_s(uneven, 10**6, slow_start)


def test_one_rank_costs_nothing():
    assert set(predict_s([[0]], 10**6, WIRE).values()) == {0.0}


def test_a_network_is_written_and_read():
    assert Network.from_dict(WIRE.to_dict()) == WIRE


@pytest.mark.parametrize(
    "change", [{"inside": {}}, {"add_bytes_per_s": 0}, {"speed": 1}, {"across": {"latency_s": -1, "bytes_per_s": 1}}]
)
def test_no_network(change):
    with pytest.raises(ValueError, match="A network has inside and across"):
        Network.from_dict({**WIRE.to_dict(), **change})


@pytest.mark.parametrize(
    ("ready_s", "times_s", "end_s"),
    [([], [], 0), ([1, 2, 3], [0.1, 0.1, 0.1], 3.1), ([1, 2, 3], [2, 2, 2], 7), ([0, 5], [1, 1], 6)],
)
def test_overlap(ready_s, times_s, end_s):
    assert overlapped_s(ready_s, times_s) == pytest.approx(end_s)
