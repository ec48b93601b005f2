import json
import os
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.cli.test_findings import answer
from tests.cli.test_findings import facts
from tests.harness import launch_environ
from tests.harness import skip_unless_installed
from tfdist.cli import check as check_module
from tfdist.cli.app import app
from tfdist.cli.facts import Facts
from tfdist.cli.facts import read_answer
from tfdist.cli.facts import read_packages
from tfdist.cli.facts import Trial
from tfdist.cli.facts import try_launcher
from tfdist.cli.probe import Interface
from tfdist.cli.probe import MARK
from tfdist.cli.probe import probe
from tfdist.cli.probe import read_interfaces
from tfdist.cli.start import Job
from tfdist.communicators import create_communicator


@pytest.fixture
def clean_environ(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in os.environ:
        if name.startswith(("OMPI_", "PMIX_", "HOROVOD_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(("launcher", "engine"), [("mpirun", "mpi"), ("horovodrun", "horovod")])
def test_each_engine_is_tried(launcher, engine, clean_environ):
    skip_unless_installed(engine)
    trial = try_launcher(launcher, Job(2, (), ("-m", "tfdist.cli.probe")), 120)
    assert not trial.error
    assert (trial.found["engine"], trial.found["ranks"], trial.found["sum_is_right"]) == (engine, 2, True)
    assert trial.found["bytes_per_s"] == pytest.approx(trial.found["sum_bytes"] / trial.found["sum_s"])
    assert trial.found["sums_by"].startswith(("Open MPI", "Gloo"))


@pytest.mark.parametrize(
    ("words", "timeout_s", "error"),
    [
        (("-c", "import nothing_of_this_name"), 60, "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        (("-c", "import time; time.sleep(60)"), 2, "did not end within 2 s"),
        (("-c", "print('no answer')"), 60, "no answer"),
    ],
)
def test_a_trial_that_fails_says_why(words, timeout_s, error, clean_environ):
    skip_unless_installed("mpi")
    assert error in try_launcher("mpirun", Job(2, (), words), timeout_s).error


def test_one_rank_alone():
    found = probe(create_communicator("local"))
    assert (found["ranks"], found["sum_is_right"], found["sums_by"], found["bytes_per_s"]) == (1, True, "nothing", 0)


def test_a_sum_that_is_wrong_is_noticed(monkeypatch):
    communicator = create_communicator("local")
    monkeypatch.setattr(communicator, "all_reduce", lambda tensors, name: [tensor + 1e-3 for tensor in tensors])
    assert not probe(communicator)["sum_is_right"]


def test_a_host_whose_name_has_no_address(tmp_path):
    """In a namespace with a name of its own, which Gloo would end with SIGSEGV for."""
    skip_unless_installed("horovod")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a host name of one's own needs root and unshare")
    doctor = [sys.executable, "-c", "from tfdist.cli import main; main()", "check", "--json"]
    words = ["unshare", "--uts", "sh", "-c", 'hostname no-such-name; exec "$@"', "sh", *doctor]
    result = subprocess.run(words, env=launch_environ(tmp_path), capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 1, result.stderr
    data = json.loads(result.stdout)
    assert not data["name_resolves"]
    assert any("own name has no address" in finding["what"] for finding in data["findings"] if finding["level"] == "failure")
    horovod = next(trial for trial in data["trials"] if trial["launcher"] == "horovodrun")
    assert horovod["error"].startswith("RuntimeError: ")
    assert "by the address of the host's own name" in horovod["error"]


def test_the_answer_is_found_among_other_output():
    assert read_answer(f'warning\n[0]<stdout>: {MARK}{{"ranks": 2}}\nbye') == {"ranks": 2}
    assert read_answer("nothing") is None


def test_interfaces(tmp_path):
    for name, state, mtu, speed in (
        ("lo", "up", 65536, None),
        ("eth0", "up", 9000, 10000),
        ("eth1", "down", 1500, 1),
        ("v0", "up", 1500, -1),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "operstate").write_text(f"{state}\n")
        (tmp_path / name / "mtu").write_text(f"{mtu}\n")
        if speed is not None:
            (tmp_path / name / "speed").write_text(f"{speed}\n")
    assert read_interfaces(tmp_path) == [Interface("eth0", 9000, 10000), Interface("v0", 1500, 0)]


def test_packages_are_found_under_the_name_of_any_wheel():
    packages = read_packages()
    assert {"tfdist", "tensorflow", "keras", "numpy"} <= set(packages)
    assert Facts("3.11", packages, {}).has("tensorflow", "2.")


def show(monkeypatch, these, *words):
    monkeypatch.setattr(check_module, "collect", lambda *_: these)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["check", *words])


def test_one_screen(monkeypatch):
    result = show(monkeypatch, facts(trials=(Trial("mpirun", 1.0, full_answer()),)))
    assert result.exit_code == 1  # Horovod is installed, and was not tried
    assert len(result.output.splitlines()) <= 24
    for part in (
        "stack",
        "current: Python 3.11.7",
        "eth0 MTU 1500 1 Gbit/s",
        "the sum of 2 ranks on a, b is right",
        "failure",
        "note",
    ):
        assert part in result.output, part


def full_answer():
    return answer("Open MPI", {"a": [], "b": []}) | {"ranks": 2, "sum_bytes": 8e6, "sum_s": 0.01}


def test_json_and_the_code(monkeypatch):
    good = facts(trials=(Trial("mpirun", 1.0, full_answer()), Trial("horovodrun", 1.0, full_answer())))
    result = show(monkeypatch, good, "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["stack"] == "current"
    assert data["trials"][0]["found"]["hosts"] == {"a": [], "b": []}
    assert {finding["level"] for finding in data["findings"]} == {"note"}


def test_wrong_hosts():
    result = CliRunner().invoke(app, ["check", "-H", "a:x"])
    assert result.exit_code == 2
