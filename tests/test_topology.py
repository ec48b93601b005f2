import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.topology import device_share
from tfdist.topology import Topology


@pytest.mark.parametrize(
    ("hosts", "devices", "text", "replicas"),
    [
        (("a",), (1,), "1 host x 1 process x 1 device", 1),
        (("a", "b"), (2, 2), "2 hosts x 1 process x 2 devices", 4),
        (("a", "a", "b", "b"), (1, 1, 1, 1), "2 hosts x 2 processes x 1 device", 4),
        (("a", "a", "b"), (1, 1, 1), "2 hosts x 1/2 processes x 1 device", 3),
    ],
)
def test_text_and_replicas(hosts, devices, text, replicas):
    topology = Topology(hosts, devices)
    assert str(topology) == text
    assert topology.num_replicas == replicas


def test_local_ranks():
    topology = Topology(("a", "b", "a", "b", "a"), (1,) * 5)
    assert [topology.local_rank(rank) for rank in range(5)] == [0, 0, 1, 1, 2]
    assert [topology.local_size(rank) for rank in range(5)] == [3, 2, 3, 2, 3]
    assert topology.ranks_on("b") == (1, 3)


@given(st.integers(1, 64), st.data())
def test_shares_are_disjoint_and_cover_all_devices(local_size, data):
    count = data.draw(st.integers(local_size, 128))
    shares = [list(device_share(count, rank, local_size)) for rank in range(local_size)]
    assert sum(shares, []) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_more_processes_than_gpus_is_an_error():
    with pytest.raises(ValueError, match="Received: processes=3, GPUs=2"):
        device_share(2, 0, 3)
