"""No GPU is here, so TensorFlow's lists of them are replaced."""

import types

import pytest
import tensorflow as tf

from tfdist.devices import find_devices
from tfdist.devices import known_devices
from tfdist.devices import share_devices
from tfdist.devices import short_name


@pytest.fixture
def machine(monkeypatch):
    """A machine of 4 GPUs; what was set is in `visible` and `grows`."""
    here = types.SimpleNamespace(gpus=[f"/physical_device:GPU:{index}" for index in range(4)], visible=None, grows=[])

    def logical(kind=None):
        count = len(here.gpus if here.visible is None else here.visible)
        names = ["/device:CPU:0", *(f"/device:GPU:{index}" for index in range(count))]
        return [types.SimpleNamespace(name=name) for name in names]

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: here.gpus if kind == "GPU" else ["CPU"])
    monkeypatch.setattr(tf.config, "list_logical_devices", logical)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, kind: setattr(here, "visible", gpus))
    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", lambda gpu, on: here.grows.append((gpu, on)))
    return here


@pytest.mark.parametrize(
    ("local_rank", "local_size", "mine"),
    [(0, 1, [0, 1, 2, 3]), (0, 2, [0, 1]), (1, 2, [2, 3]), (3, 4, [3])],
)
def test_a_process_takes_its_share_of_the_gpus(machine, local_rank, local_size, mine):
    assert share_devices(local_rank, local_size) == [f"GPU:{index}" for index in range(len(mine))]
    assert machine.visible == [f"/physical_device:GPU:{index}" for index in mine]
    assert machine.grows == [(gpu, True) for gpu in machine.visible]


def test_more_processes_than_gpus(machine):
    with pytest.raises(ValueError, match="Each process of a host needs a GPU of its own.*processes=5, GPUs=4"):
        share_devices(0, 5)


def test_without_gpus_all_cpus(machine):
    machine.gpus = []
    assert share_devices(1, 2) == ["CPU:0"]
    assert machine.visible is None


def test_names(machine):
    assert known_devices() == ["CPU:0", "GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    assert known_devices("GPU") == ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]
    assert find_devices(["/gpu:1", "/job:localhost/replica:0/task:0/device:GPU:0"]) == ["GPU:1", "GPU:0"]
    assert short_name("GPU:7") == "GPU:7"


@pytest.mark.parametrize("names", [[], ["GPU:4"], ["GPU:0", "gpu:0"]])
def test_wrong_names(machine, names):
    with pytest.raises(ValueError, match="must name devices of this process, each once, out of .*'GPU:3'.*Received"):
        find_devices(names)
