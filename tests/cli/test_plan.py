import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.harness import Layout
from tests.harness import on_ranks
from tfdist.cli.app import app
from tfdist.cli.gradients import gradient_bytes
from tfdist.collectives.measure import measure_network
from tfdist.communicators import create_communicator
from tfdist.topology import Topology

NETWORK = {
    "inside": {"latency_s": 1e-5, "bytes_per_s": 1e10},
    "across": {"latency_s": 1e-4, "bytes_per_s": 1e8},
    "add_bytes_per_s": 1e10,
}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "network.json").write_text(json.dumps(NETWORK))
    (tmp_path / "model.json").write_text(json.dumps([4000, 8_000_000, 400]))
    return tmp_path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_table(files):
    result = run("plan", files / "model.json", "--network", files / "network.json", "--max-devices", 16)
    assert result.exit_code == 0, result.output
    assert "3 gradients, 8.0 MB" in result.output
    assert "across hosts: 100 us, 100 MB/s" in result.output


def test_json_and_a_picture(files):
    words = ["--network", files / "network.json", "--max-devices", 64, "--json", "--plot", files / "plan.png"]
    result = run("plan", files / "model.json", *words, "--save-network", files / "again.json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert list(found["predicted_s"]) == ["2", "4", "8", "16", "32", "64"]
    assert found["gradient_bytes"] == 8_004_400
    assert found["predicted_s"]["64"]["hierarchical"] < found["predicted_s"]["64"]["ring"]
    assert (files / "plan.png").stat().st_size > 5000
    assert json.loads((files / "again.json").read_text())["across"] == NETWORK["across"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["NoModel", "--network", "network.json"], "Received: model='NoModel'"),
        (["model.json", "--network", "missing.json"], "missing.json"),
        (["model.json", "--network", "model.json"], "A network has inside and across"),
        (["model.json"], "communicator='local', ranks=1"),
    ],
)
def test_errors(files, monkeypatch, words, message):
    monkeypatch.chdir(files)
    result = run("plan", *words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


def test_the_gradients_of_a_model(tmp_path):
    import keras

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(5), keras.layers.BatchNormalization()])
    model.save(tmp_path / "model.keras")
    assert gradient_bytes(str(tmp_path / "model.keras")) == [60, 20, 20, 20]


@on_ranks(Layout(2, launcher="mpi"))
def test_the_network_is_measured_and_is_the_same_on_all_ranks():
    communicator = create_communicator()
    network = measure_network(communicator, Topology(("a", "a"), (1, 1)))
    assert network.inside == network.across
    assert 1e-7 < network.inside.latency_s < 0.05
    assert 1e6 < network.inside.bytes_per_s < 1e12
    assert 1e7 < network.add_bytes_per_s < 1e13
    values = np.array([[network.inside.latency_s, network.inside.bytes_per_s, network.add_bytes_per_s]])
    assert (np.diff(communicator.gather_array(values), axis=0) == 0).all()
