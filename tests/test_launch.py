import pytest

from tfdist.communicators import create_communicator
from tfdist.launch import read_launch

HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "0", "PMIX_NAMESPACE": "x"}
SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("environ", "launcher", "rank", "size", "engine"),
    [
        (HOROVOD, "horovodrun", 1, 2, "horovod"),
        (OPEN_MPI, "Open MPI's mpirun", 0, 4, "mpi"),
        ({**OPEN_MPI, **SLURM}, "Open MPI's mpirun", 0, 4, "mpi"),
        ({**SLURM, "PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}, "srun --mpi=pmix", 1, 2, "mpi"),
        (SLURM, "srun", 1, 2, None),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "a PMI process manager", 1, 2, "mpi"),
        ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "2"}, "MVAPICH", 1, 2, "mpi"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "torchrun", 1, 2, None),
    ],
)
def test_launchers(environ, launcher, rank, size, engine):
    launch = read_launch(environ)
    assert (launch.launcher, launch.rank, launch.size, launch.engine) == (launcher, rank, size, engine)


@pytest.mark.parametrize("environ", [{}, {"SLURM_NTASKS": "2"}, {"RANK": "0", "WORLD_SIZE": "2"}, {"HOROVOD_RANK": "0"}])
def test_no_launch(environ):
    assert read_launch(environ) is None  # SLURM_NTASKS alone is an allocation, not a launch
    assert create_communicator("auto", environ).name == "local"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "2"}, "less than the size.*HOROVOD_RANK=2"),
        ({"HOROVOD_RANK": "x", "HOROVOD_SIZE": "2"}, "must be a whole number.*HOROVOD_RANK='x'"),
    ],
)
def test_wrong_values(environ, message):
    with pytest.raises(ValueError, match=message):
        read_launch(environ)


def test_a_launch_that_no_engine_knows_is_never_taken_for_one_process():
    with pytest.raises(RuntimeError, match=r"(?s)SLURM_PROCID=1.*srun --mpi=pmix.*horovodrun.*communicator='local'"):
        create_communicator("auto", SLURM)


def test_an_engine_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "horovod", None)
    with pytest.raises(RuntimeError, match=r"(?s)HOROVOD_RANK=1.*does not start.*horovod_wheel.sh"):
        create_communicator("auto", HOROVOD)


def test_alone_on_purpose():
    assert create_communicator("local", SLURM).size == 1


def test_an_unknown_name():
    with pytest.raises(ValueError, match="'auto' or one of.*Received: communicator='nccl'"):
        create_communicator("nccl")
