"""Lets two containers of an image train as two hosts, each in a network namespace of its own.

    python tools/image_hosts.py localhost/tfdist

Needs root and buildah; says why and skips elsewhere. Ends with code 1 if training fails.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

from tests.netlab import Lab
from tests.netlab import why_not
from tests.rank import ROOT

SSHD = ["/usr/sbin/sshd", "-De", "-f", "/etc/ssh/sshd_config.tfdist"]


def main() -> None:
    reason = why_not()
    if reason is not None:
        print(f"two containers as two hosts skipped: {reason}", file=sys.stderr)
        return
    with Lab(hosts=2) as lab:
        containers = [make_container(sys.argv[1], lab, host) for host in lab.hosts]
        try:
            share_key(*containers)
            train(lab, containers)
        finally:
            subprocess.run(["buildah", "rm", *containers], check=True, stdout=subprocess.DEVNULL)


def train(lab: Lab, containers: list[str]) -> None:
    hosts = ",".join(lab.hosts)

    def first(*words: str, timeout_s: float) -> str:
        command = lab.command(inside(containers[0], list(words)))
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with code {done.returncode}:\n{done.stdout}")
        return done.stdout

    with subprocess.Popen(lab.command(inside(containers[1], SSHD), host=1), stderr=subprocess.DEVNULL):
        try:
            first("sh", "-c", f"until ssh {lab.hosts[1]} true; do sleep 0.5; done", timeout_s=60)
            print(first("tfdist", "check", "-H", hosts, timeout_s=240))
            for launcher in ("mpirun", "horovodrun"):
                output = first(
                    "tfdist", "run", "--launcher", launcher, "-H", hosts, "examples/mnist.py", "--epochs", "2", timeout_s=300
                )
                if "2 hosts x 1 process x 1 device" not in output or "test accuracy" not in output:
                    raise RuntimeError(f"{launcher} did not train on two hosts:\n{output}")
                print(f"{launcher}: two containers trained as two hosts")
        finally:
            lab.end_processes()


def share_key(first: str, second: str) -> None:
    """Makes the key that all hosts share, by the command of docker/compose.yaml."""
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    _output(*inside(first, services["key"]["command"]))
    _output("buildah", "copy", "--from", first, "--chown", "1000:1000", second, "/home/trainer/.ssh", "/home/trainer/.ssh")


def make_container(image: str, lab: Lab, host: str) -> str:
    """A container with the host's name and all hosts' addresses."""
    addresses = [f"--add-host={name}:{lab.address(name)}" for name in lab.hosts]
    container = _output("buildah", "from", *addresses, image)
    _output("buildah", "config", "--hostname", host, container)
    return container


def inside(container: str, words: list[str]) -> list[str]:
    """A command as it must be started to run in the container; on the network of whoever starts it."""
    return ["buildah", "run", "--isolation", "chroot", container, "--", *words]


def _output(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
