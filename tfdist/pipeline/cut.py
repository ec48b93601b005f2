"""A Keras model as stages, and what goes from one to the next."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import keras

from tfdist import _keras


class Part(NamedTuple):
    """One stage.

    Tensors are named by whole numbers: those of the model's inputs first, and so on in the order of layers.
    """

    model: Any
    uses: list[int]
    """What the model takes."""
    makes: list[int]
    """What the model gives to later stages, or as an output of all."""
    carries: list[int]
    """What earlier stages have made for later ones."""


class Cut(NamedTuple):
    """A model in parts."""

    parts: list[Part]
    inputs: list[int]
    outputs: list[int]


def cut(model: Any, starts: Sequence[int]) -> Cut:
    """Cuts a model.

    Args:
        model: A Sequential or Functional model; the parts share its layers.
        starts: The first layer of each stage, in the order of `layer_calls`.

    Raises:
        ValueError: If a layer is in two stages, or keeps a state from batch to batch.
    """
    calls = _keras.layer_calls(model)
    stage_of = [bisect.bisect_right(starts, place) - 1 for place in range(len(calls))]
    _check(calls, stage_of)
    inputs, outputs = _keras.model_ends(model)
    tensors: list[Any] = [*inputs, *(tensor for call in calls for tensor in call.outputs)]
    number = {id(tensor): place for place, tensor in enumerate(tensors)}
    made_in = {number[id(tensor)]: -1 for tensor in inputs}
    made_in |= {number[id(tensor)]: stage for call, stage in zip(calls, stage_of, strict=True) for tensor in call.outputs}
    used_in: dict[int, set[int]] = {place: set() for place in range(len(tensors))}
    for call, stage in zip(calls, stage_of, strict=True):
        for tensor in call.inputs:
            used_in[number[id(tensor)]].add(stage)
    ends = [number[id(tensor)] for tensor in outputs]
    last_use = {place: max(used_in[place], default=-1) if place not in ends else len(starts) for place in used_in}
    parts = []
    for stage in range(len(starts)):
        uses = [place for place in used_in if stage in used_in[place] and made_in[place] < stage]
        makes = [place for place in used_in if made_in[place] == stage and last_use[place] > stage]
        carries = [place for place in used_in if made_in[place] < stage < last_use[place]]
        parts.append(Part(keras.Model([tensors[i] for i in uses], [tensors[i] for i in makes]), uses, makes, carries))
    return Cut(parts, [number[id(tensor)] for tensor in inputs], ends)


def _check(calls: Sequence[_keras.LayerCall], stage_of: Sequence[int]) -> None:
    stages: dict[int, int] = {}
    for call, stage in zip(calls, stage_of, strict=True):
        if stages.setdefault(id(call.layer), stage) != stage:
            raise ValueError(
                "A layer that is called twice must be in one stage, since its weights are on one device. Received: "
                f"{call.layer.name!r} in the stages {stages[id(call.layer)]} and {stage}; give `balance` as a list."
            )
        if getattr(call.layer, "stateful", False) and hasattr(call.layer, "reset_states"):
            raise ValueError(
                "A layer that keeps a state from batch to batch cannot be in a pipeline, where batches overlap. Received: "
                f"{call.layer.name!r} with stateful=True."
            )
