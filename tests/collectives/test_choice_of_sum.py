"""Which sum fits an engine, a topology and the devices; what they do is tested elsewhere."""

import pytest

from tfdist.collectives.engine_sum import EngineSum
from tfdist.collectives.grouped_sum import GroupedSum
from tfdist.collectives.packed_sum import PackedSum
from tfdist.collectives.sums import create_sum
from tfdist.communicators.group import Group
from tfdist.communicators.local import LocalCommunicator
from tfdist.topology import Topology


class FakeGroup(Group):
    reduce_scatter = all_reduce = all_gather = all_to_all = None

    def __init__(self, size):
        self.size, self.rank = size, 0


class Engine(LocalCommunicator):
    """Looks like Horovod."""

    name = "horovod"
    size = 4
    has_groups = True

    def group(self, groups):
        return FakeGroup(len(groups[0]))


NESTED = Topology(("a", "a", "b", "b"), (1,) * 4)
FLAT = Topology(("a", "b", "c", "d"), (1,) * 4)
UNEVEN = Topology(("a", "a", "a", "b"), (1,) * 4)


@pytest.mark.parametrize(
    ("topology", "algorithm", "on_gpus", "kind"),
    [
        (NESTED, "auto", False, GroupedSum),
        (NESTED, "engine", False, PackedSum),
        (FLAT, "auto", False, PackedSum),
        (UNEVEN, "auto", False, PackedSum),
        (NESTED, "auto", True, EngineSum),
        (NESTED, "engine", True, EngineSum),
        (FLAT, "auto", True, EngineSum),
        (NESTED, "hierarchical", True, GroupedSum),
    ],
)
def test_an_engine_without_messages(topology, algorithm, on_gpus, kind):
    assert type(create_sum(Engine(), topology, algorithm, on_gpus)) is kind


def test_hierarchical_needs_even_hosts():
    with pytest.raises(ValueError, match="Received: algorithm='hierarchical'"):
        create_sum(Engine(), UNEVEN, "hierarchical", on_gpus=False)
