"""The gradients of a model, by its name."""

from __future__ import annotations

import json
import math
import pathlib


def gradient_bytes(model: str) -> list[int]:
    """The size of each gradient, in layer order.

    Args:
        model: A model of `keras.applications` such as "ResNet50", a `.keras` file, or a `.json` file with a list of sizes in bytes.

    Raises:
        ValueError: If there is no such model.
    """
    path = pathlib.Path(model)
    if path.suffix == ".json":
        return [int(size) for size in json.loads(path.read_text())]
    import keras

    if path.suffix == ".keras":
        built = keras.models.load_model(path, compile=False)
    elif hasattr(keras.applications, model):
        built = getattr(keras.applications, model)(weights=None)
    else:
        raise ValueError(
            "A model is the name of one in keras.applications, a .keras file, or a .json file with sizes in bytes. "
            f"Received: model={model!r}."
        )
    return [4 * math.prod(variable.shape) for variable in built.trainable_variables]
