"""Test hosts, and what needs several hosts to be seen."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.harness import launch_environ
from tests.harness import ROOT
from tests.harness import skip_unless_installed
from tests.netlab import Lab
from tests.netlab import why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def test_hosts_have_names_addresses_and_links_of_the_chosen_rate():
    with Lab(hosts=2, rate_mbit=80) as lab:
        receive = "import socket; s = socket.create_server(('', 5555)); c, _ = s.accept()\nwhile c.recv(65536): pass"
        send = (
            f"import socket, time; s = socket.create_connection(('{lab.hosts[0]}', 5555)); begin = time.time()\n"
            "s.sendall(bytes(4_000_000)); s.shutdown(socket.SHUT_WR); s.recv(1); print(socket.gethostname(), time.time() - begin)"
        )
        receiver = subprocess.Popen(lab.command([sys.executable, "-c", receive], 0))
        time.sleep(1)
        sent = subprocess.run(lab.command([sys.executable, "-c", send], 1), capture_output=True, text=True, timeout=60, check=True)
        receiver.wait(10)
        name, seconds = sent.stdout.split()
        assert name == lab.hosts[1] != socket.gethostname()
        # 4 MB at 10 MB/s; the first 128 KiB pass at once.
        assert 0.36 < float(seconds) < 1.5


def test_nothing_is_left_behind():
    with Lab(hosts=2) as lab:
        sleeper = subprocess.Popen(lab.command(["sleep", "600"], 1))
        names = [*lab.hosts, lab._bridge]
    assert sleeper.wait(10) != 0
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert not [name for name in names if name in listed or pathlib.Path("/etc/netns", name).exists()]
    assert not lab._folder.exists()


def test_nothing_is_left_behind_by_a_program_that_is_ended():
    program = (
        "import time\nfrom tests.netlab import Lab\nwith Lab(1) as lab:\n    print(lab.hosts[0], flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    host = process.stdout.readline().strip()
    assert pathlib.Path("/etc/netns", host).exists()
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    process.stdout.close()
    assert not pathlib.Path("/etc/netns", host).exists()


def test_a_command_that_fails_or_hangs_is_an_error():
    with Lab(hosts=1) as lab:
        with pytest.raises(RuntimeError, match=r"ended with code 3:\nout"):
            lab.run(["sh", "-c", "echo out; exit 3"], 10)
        with pytest.raises(RuntimeError, match="did not end within 1 s"):
            lab.run(["sleep", "600"], 1)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", ["mpi", "horovod"])
def test_a_sum_between_hosts_crosses_the_wire_once(launcher, tmp_path):
    """With two ranks a host, no more leaves a host than one rank alone would have sent."""
    skip_unless_installed(launcher)
    # On a wire that is slower than memory: on one that is not, "auto" may measure that a plan which sends more is faster.
    with Lab(hosts=2, rate_mbit=1000) as lab:
        start = ["mpirun", *lab.mpirun_options(2)] if launcher == "mpi" else ["horovodrun", *lab.horovodrun_options(2)]
        environ = {
            **launch_environ(tmp_path),
            "PATH": f"{lab.environ()['PATH'].split(os.pathsep)[0]}{os.pathsep}{launch_environ(tmp_path)['PATH']}",
        }
        output = lab.run([*start, sys.executable, __file__], 180, environ)
    result = json.loads(output[output.index("RESULT ") + 7 :].splitlines()[0])
    assert result["topology"] == "2 hosts x 2 processes x 1 device"
    assert result["sum"] == [10.0, 20.0]
    for compression, share in (("none", 1), ("bf16", 1 / 2), ("int8", 1 / 4)):
        assert result["sent_bytes"][compression] == pytest.approx(result["gradient_bytes"] * share, rel=0.1)


def work():
    import tensorflow as tf

    import tfdist

    length, sent_bytes = 2**21, {}
    for compression in ("none", "bf16", "int8"):
        strategy = tfdist.HierarchicalStrategy(compression=compression)

        def replica(strategy=strategy):
            gradient = tf.cast(strategy.rank + 1, tf.float32) * tf.concat([tf.ones([length - 1]), [2.0]], 0)
            return tf.distribute.get_replica_context().all_reduce("SUM", gradient)

        step = tf.function(lambda strategy=strategy, replica=replica: strategy.run(replica))
        step()
        strategy._agreement.meet("begin")
        before = _sent_bytes()
        total = np.array(step())
        strategy._agreement.meet("end")
        sent_bytes[compression] = _sent_bytes() - before
        np.testing.assert_allclose(total[[0, -1]], [10, 20], rtol=0.02)
    if strategy.rank == 0:
        about = {"topology": str(strategy.topology), "gradient_bytes": 4 * length, "sent_bytes": sent_bytes}
        print("RESULT", json.dumps({**about, "sum": np.round(total[[0, -1]]).tolist()}), flush=True)


def _sent_bytes():
    return int(pathlib.Path("/sys/class/net/eth0/statistics/tx_bytes").read_text())


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    work()
