"""What is uploaded: the source holds all that tests need, and the wheel works alone."""

import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import pytest

import tfdist
from tests.harness import launch_environ

ROOT = pathlib.Path(__file__).parent.parent
PROGRAM = """
import pathlib, keras, numpy as np, tfdist
assert pathlib.Path(tfdist.__file__).is_relative_to({site!r}), tfdist.__file__
assert pathlib.Path(tfdist.callbacks.__file__).is_relative_to({site!r})
strategy = tfdist.HierarchicalStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(tfdist.optimizers.LARS(0.1), "mse")
model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0, callbacks=[tfdist.callbacks.LearningRateWarmup(epochs=1)])
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    for tool in ("build", "twine"):
        pytest.importorskip(tool, reason="it is in the extra `dev`, which this environment does not have")
    folder = tmp_path_factory.mktemp("dist")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(words, check=True, env=environ, stdout=subprocess.DEVNULL)
    return folder


def test_the_source_holds_what_tests_need(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {
        path.relative_to(ROOT).as_posix() for folder in ("tests", "examples", "docker") for path in (ROOT / folder).rglob("*.*")
    }
    needed = {name for name in tracked if "__pycache__" not in name}
    assert not needed - names
    assert {"Makefile", "setup.cfg", "README.md", "callbacks/__init__.py", "tools/environment.sh"} <= names


def test_the_wheel_holds_the_packages_and_no_more(built):
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        names = archive.namelist()
    assert {"tfdist/py.typed", "tfdist/callbacks/__init__.py", "tfdist/cli/app.py", "tfdist/_keras/graph.py"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"tfdist", f"tfdist-{tfdist.__version__}.dist-info"}
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tfdist").rglob("*.py")}
    assert {name for name in sources if not name.startswith("tfdist/callbacks")} <= set(names)


def test_the_description_is_fit_to_be_shown(built):
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())], check=True)


def test_the_wheel_works_in_an_empty_folder(built, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    wheel = str(next(built.glob("*.whl")))
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), wheel], check=True)
    environ = launch_environ(tmp_path) | {"PYTHONPATH": str(site)}
    subprocess.run([sys.executable, "-c", PROGRAM.format(site=str(site))], check=True, cwd=empty, env=environ)
    subprocess.run([sys.executable, "-m", "tfdist.cli.probe"], check=True, cwd=empty, env=environ, stdout=subprocess.DEVNULL)
