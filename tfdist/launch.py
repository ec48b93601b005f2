"""What the launcher's environment says about this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Launch:
    """One process of a job, as its launcher describes it.

    Args:
        launcher: The launcher's name for a person.
        rank: This process's rank, from 0.
        size: The number of processes.
        engine: The communicator that can reach the others, "horovod" or "mpi"; None where there is none.
        variables: The environment variables that say so.
        hint: How to start the job instead, where `engine` is None.
    """

    launcher: str
    rank: int
    size: int
    engine: str | None
    variables: tuple[str, ...]
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.launcher} ({', '.join(self.variables)})"


@dataclasses.dataclass(frozen=True)
class _Launcher:
    name: str
    rank: str
    size: str
    engine: str | None
    needs: tuple[str, ...] = ()
    hint: str = ""


_INSTEAD = "Start it with `horovodrun -np N python script.py` or `mpirun --bind-to none -np N python script.py`"

# The first row whose variables are all there decides. mpirun also sets PMIx's variables and Slurm's may be around it, so the
# launchers come before the process managers below them.
_LAUNCHERS = (
    _Launcher("horovodrun", "HOROVOD_RANK", "HOROVOD_SIZE", "horovod"),
    _Launcher("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "mpi"),
    _Launcher("srun --mpi=pmix", "PMIX_RANK", "SLURM_NTASKS", "mpi", needs=("PMIX_NAMESPACE", "SLURM_STEP_ID")),
    _Launcher("MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "mpi"),
    _Launcher("a PMI process manager", "PMI_RANK", "PMI_SIZE", "mpi"),
    _Launcher(
        "srun",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        None,
        needs=("SLURM_STEP_ID",),
        hint=f"Use `srun --mpi=pmix`, which lets Open MPI connect the tasks. {_INSTEAD} otherwise",
    ),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", None, needs=("LOCAL_RANK",), hint=_INSTEAD),
)


def read_launch(environ: Mapping[str, str]) -> Launch | None:
    """Says which launcher started this process, and as which rank of how many.

    Args:
        environ: The environment variables.

    Returns:
        The launch, or None if no known launcher's variables are there.

    Raises:
        ValueError: If a launcher's variables are there but are no rank and size.

    Example:
        >>> read_launch({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}).size
        4
    """
    for launcher in _LAUNCHERS:
        names = (launcher.rank, launcher.size, *launcher.needs)
        if all(name in environ for name in names):
            rank, size = (_number(environ, name) for name in names[:2])
            variables = tuple(f"{name}={environ[name]}" for name in names)
            if not 0 <= rank < size:
                raise ValueError(f"A rank must be at least 0 and less than the size. Received: {', '.join(variables)}.")
            return Launch(launcher.name, rank, size, launcher.engine, variables, launcher.hint)
    return None


def _number(environ: Mapping[str, str], name: str) -> int:
    try:
        return int(environ[name])
    except ValueError:
        raise ValueError(f"{name} must be a whole number. Received: {name}={environ[name]!r}.") from None
