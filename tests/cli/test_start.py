import pytest

from tfdist.cli.start import choose_launcher
from tfdist.cli.start import command
from tfdist.cli.start import Job
from tfdist.cli.start import read_hostfile

SCRIPT = ("train.py", "--epochs", "3")
BOTH = {"mpirun": True, "horovodrun": True}


@pytest.mark.parametrize(
    ("processes", "hosts", "size", "slots"),
    [
        (0, (), 1, []),
        (4, (), 4, []),
        (0, ("a", "b"), 2, [("a", 1), ("b", 1)]),
        (4, ("a", "b"), 4, [("a", 2), ("b", 2)]),
        (3, ("a", "b"), 3, [("a", 2), ("b", 2)]),
        (0, ("a:2", "b:1"), 3, [("a", 2), ("b", 1)]),
        (2, ("a:2", "b:2"), 2, [("a", 2), ("b", 2)]),
    ],
)
def test_processes_and_slots(processes, hosts, size, slots):
    job = Job(processes, hosts, SCRIPT)
    assert (job.size, job.slots) == (size, slots)


@pytest.mark.parametrize(
    ("processes", "hosts", "message"),
    [
        (-1, (), "must be positive.*-np -1"),
        (2, ("a:0",), "as a:2.*-H a:0"),
        (2, (":2",), "as a:2.*-H :2"),
        (2, ("a:x",), "as a:2.*-H a:x"),
        (4, ("a:1", "b:1"), "take 2 processes in all.*-np 4, -H a:1,b:1"),
    ],
)
def test_wrong_jobs(processes, hosts, message):
    with pytest.raises(ValueError, match=message):
        Job(processes, hosts, SCRIPT)


@pytest.mark.parametrize(
    ("job", "works", "gpus", "launcher"),
    [
        (Job(0, (), SCRIPT), BOTH, 0, "none"),
        (Job(0, (), SCRIPT), {}, 0, "none"),
        (Job(2, (), SCRIPT), BOTH, 0, "mpirun"),
        (Job(2, (), SCRIPT), BOTH, 2, "horovodrun"),
        (Job(2, (), SCRIPT), {"mpirun": True}, 2, "mpirun"),
        (Job(2, (), SCRIPT), {"horovodrun": True}, 0, "horovodrun"),
        (Job(0, ("a",), SCRIPT), BOTH, 0, "mpirun"),
    ],
)
def test_launcher(job, works, gpus, launcher):
    assert choose_launcher(job, works, gpus) == launcher


def test_hostfile():
    text = "# made by an operator\n\na slots=2 max-slots=4\nb.svc:2   # two\nc\n"
    assert read_hostfile(text) == ("a:2", "b.svc:2", "c")
    assert read_hostfile("") == ()


def test_no_launcher():
    with pytest.raises(ValueError, match=r"tfdist\[mpi\].*horovod_wheel.sh.*Received: 2 processes"):
        choose_launcher(Job(2, (), SCRIPT), {"mpirun": False}, 0)


def words(job, launcher, environ=None, root=False):
    start, variables = command(job, launcher, "py", launcher, environ or {}, root)
    return " ".join(start), variables


@pytest.mark.parametrize(
    ("job", "launcher", "expected"),
    [
        (Job(0, (), SCRIPT), "none", "py train.py --epochs 3"),
        (Job(2, (), ("-m", "package.train")), "horovodrun", "horovodrun --disable-cache -np 2 py -m package.train"),
        (Job(2, (), ("./program",)), "horovodrun", "horovodrun --disable-cache -np 2 ./program"),
        (
            Job(0, ("a:2", "b"), SCRIPT, "eth0", 2222),
            "horovodrun",
            "horovodrun --disable-cache -np 3 -H a:2,b:1 --network-interfaces eth0 -p 2222 py train.py --epochs 3",
        ),
        (Job(2, (), SCRIPT), "mpirun", "mpirun -np 2 --map-by :OVERSUBSCRIBE --bind-to none py train.py --epochs 3"),
        (
            Job(2, ("a", "b"), SCRIPT, "eth0", 2222),
            "mpirun",
            "mpirun -np 2 --map-by :OVERSUBSCRIBE --bind-to none --host a:1,b:1 --mca btl_tcp_if_include eth0 "
            "--prtemca prte_if_include eth0 --prtemca plm_ssh_args -p 2222 -x PATH -x TF_SEED py train.py --epochs 3",
        ),
    ],
)
def test_words(job, launcher, expected):
    assert words(job, launcher, {"PATH": "/bin", "HOME": "/root", "TF_SEED": "1"}) == (expected, {})


def test_root_is_allowed_by_mpirun_only():
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert words(Job(2, (), SCRIPT), "mpirun", root=True)[1] == allowed
    assert words(Job(2, (), SCRIPT), "horovodrun", root=True)[1] == {}
