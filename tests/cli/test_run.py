import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.harness import launch_environ
from tests.harness import skip_unless_installed
from tfdist.cli.app import app

TFDIST = [sys.executable, "-c", "from tfdist.cli import main; main()"]
SCRIPT = """
import sys
import tfdist
strategy = tfdist.HierarchicalStrategy()
if strategy.is_chief:
    print("RESULT", strategy.size, sys.argv[1:], flush=True)
"""


def run(*words):
    return CliRunner().invoke(app, ["run", *words])


def test_the_command_is_shown_and_not_started():
    result = run("-np", "2", "--launcher", "mpirun", "--dry-run", "absent.py", "--epochs", "3")
    assert result.exit_code == 0
    assert result.output.strip().endswith("absent.py --epochs 3")


def test_json():
    result = run("--json", "absent.py", "--json")
    assert result.exit_code == 0
    assert json.loads(result.output) == {
        "launcher": "none",
        "processes": 1,
        "command": [sys.executable, "absent.py", "--json"],
        "environ": {},
    }


def test_a_module_and_its_arguments():
    data = json.loads(run("--json", "--launcher", "horovodrun", "-np", "2", "-m", "package.train", "--epochs", "3").output)
    assert data["command"][-6:] == ["2", sys.executable, "-m", "package.train", "--epochs", "3"]


def test_hosts_of_a_file(tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\nb slots=1\n")
    data = json.loads(run("--launcher", "horovodrun", "--hostfile", str(tmp_path / "hosts"), "--json", "x.py").output)
    assert data["processes"] == 3
    assert "a:2,b:1" in data["command"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--launchr", "mpirun", "x.py"), "There is no such option. Received: --launchr"),
        (("--launcher", "slurm", "x.py"), "must be auto or one of none, mpirun, horovodrun"),
        (("--launcher", "none", "-np", "2", "x.py"), "Without a launcher there is one process"),
        (("-np", "3", "-H", "a:1", "x.py"), "The hosts take 1 processes in all"),
        (("--launcher", "none", "./nowhere"), "./nowhere does not start: No such file or directory"),
        (("--hostfile", "/nowhere/hosts", "x.py"), "No such file or directory: '/nowhere/hosts'"),
    ],
)
def test_wrong_words(words, message):
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["run", *words])
    assert result.exit_code == 2
    assert message in " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_a_script_runs_on_two_ranks(launcher, tmp_path):
    skip_unless_installed({"mpirun": "mpi", "horovodrun": "horovod"}[launcher])
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [*TFDIST, "run", "--launcher", launcher, "-np", "2", "script.py", "--epochs", "3"]
    environ = {name: value for name, value in launch_environ(tmp_path).items() if not name.startswith("OMPI_")}
    result = subprocess.run(words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "RESULT 2 ['--epochs', '3']" in result.stdout


def test_mpirun_starts_where_a_killed_one_of_the_same_id_left_its_session(tmp_path):
    """Open MPI 5 says "The PMIx server's listener thread failed to start" there."""
    skip_unless_installed("mpi")
    program = (
        "import os, pathlib, sys\n"
        "left = pathlib.Path(os.environ['TMPDIR'], f'ompi.{os.getpid()}')\n"
        "left.mkdir()\n"
        "(left / f'pmix.{os.uname().nodename}.tool').write_text('stale')\n"
        "(left / f'pmix.{os.uname().nodename}.tool.{os.getpid()}').write_text('stale')\n"
        "from tfdist.cli import main\n"
        "sys.argv = ['tfdist', 'run', '--launcher', 'mpirun', '-np', '2', 'true']\n"
        "main()\n"
    )
    environ = launch_environ(tmp_path)
    result = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def test_the_command_line_starts_without_tensorflow():
    program = "import sys; import tfdist.cli.app; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ})
