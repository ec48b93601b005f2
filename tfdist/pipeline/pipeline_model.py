"""A Keras model whose layers run on several devices, several minibatches at a time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras
from tfdist.pipeline.balance import stage_starts
from tfdist.pipeline.compiled_stage import CompiledStage
from tfdist.pipeline.cut import cut
from tfdist.pipeline.engine import Engine
from tfdist.pipeline.lookahead import Lookahead

SCHEDULES = ("spectrain", "stale", "stash", "gpipe")


class PipelineModel(keras.Model):
    """Cuts a model into stages, one for each device, and runs minibatches through them without draining.

    Args:
        model: A Sequential model with an Input, or a Functional one. It is left alone until `unpipelined`.
        devices: Names such as "CPU:1", a number of this process's devices, or None for all of them.
        schedule: "gpipe": the micro-batches of one batch, and one update: the plain model's. "stale": a forward and a backward pass
            in turns, with the weights of the moment. "stash": the same, each backward pass with the weights of its forward pass.
            "spectrain": the same, with weights as they are predicted to be when the minibatch ends. Defaults to `"spectrain"`.
        microbatches: Those of a batch, for "gpipe". Defaults to the number of stages.
        balance: What is made even: "time", measured here, "parameters", or a list of the number of layers of each stage.
            Defaults to `"time"`.

    Raises:
        ValueError: If the model cannot be cut, there are more stages than layers, or an argument is not known.
    """

    def __init__(
        self,
        model: Any,
        devices: Sequence[str] | int | None = None,
        schedule: str = "spectrain",
        microbatches: int | None = None,
        balance: str | Sequence[int] = "time",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if schedule not in SCHEDULES:
            raise ValueError(f"`schedule` must be one of {list(SCHEDULES)}. Received: schedule={schedule!r}.")
        self.schedule = schedule
        self._devices = _resolve(devices)
        self.microbatches = microbatches or len(self._devices)
        starts = stage_starts(model, len(self._devices), balance)
        calls = _keras.layer_calls(model)
        ends = [*starts[1:], len(calls)]
        device_of = {
            call.layer.name: device
            for device, start, end in zip(self._devices, starts, ends, strict=True)
            for call in calls[start:end]
        }
        self.model = _keras.copy_on_devices(model, device_of)
        # Keras would count the weights and losses of what it finds in attributes twice.
        self._hidden = SimpleNamespace(plain=model, cut=cut(self.model, starts), engine=None, ahead=None)
        self._extra_losses: list[Any] | None = None

    def call(self, inputs: Any, training: Any = None) -> Any:
        return self.model(inputs, training=training)

    @property
    def losses(self) -> Any:
        return super().losses if self._extra_losses is None else self._extra_losses

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:
        super().compile(optimizer, *args, **{**kwargs, "jit_compile": False})
        self._hidden.engine = None

    def unpipelined(self) -> Any:
        """The model that this one was made of, with the weights of now."""
        self._hidden.plain.set_weights(self.model.get_weights())
        return self._hidden.plain

    def make_train_function(self, force: bool = False) -> Any:
        if getattr(self, "train_function", None) is not None and not force:
            return self.train_function
        self.train_function: Any = self._train_on_next
        return self.train_function

    # A step ----------------------------------------------------------------------------------------------------------------

    def _train_on_next(self, iterator: Any) -> dict[str, Any]:
        batches, is_last = self._next_batches(iterator)
        engine = self._get_engine(batches[0])
        if self.schedule == "gpipe":
            for batch in batches:
                engine.train_by_microbatches(batch)
        else:
            engine.train(batches)
            if is_last:
                engine.drain()
        return self.get_metrics_result()

    def _next_batches(self, iterator: Any) -> tuple[list[Any], bool]:
        """Those that Keras wants trained on at once, and whether the epoch ends with them."""
        count, is_last = _keras.steps_of_execution()
        if is_last is not None:
            return [_keras.unpack_batch(next(iterator)) for _ in range(count)], is_last
        if self._hidden.ahead is None or self._hidden.ahead.iterator is not iterator:
            self._hidden.ahead = Lookahead(iterator)
        return self._hidden.ahead.next(count)

    def _get_engine(self, batch: Any) -> Engine:
        if self._hidden.engine is None:
            _keras.build_metrics(self, batch[0], batch[1])
            parts = self._hidden.cut.parts
            _keras.place_slots(self.optimizer)
            _keras.build(self.optimizer, list(self.model.trainable_variables))
            stages = [
                CompiledStage(part.model, device, k > 0) for k, (part, device) in enumerate(zip(parts, self._devices, strict=True))
            ]
            self._hidden.engine = Engine(self, self._hidden.cut, stages)
        return self._hidden.engine


def _resolve(devices: Sequence[str] | int | None) -> list[str]:
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    known = [":".join(device.name.split(":")[-2:]) for device in tf.config.list_logical_devices()]
    mine = [name for name in known if name.startswith(kind)]
    names = (
        mine if devices is None else mine[:devices] if isinstance(devices, int) else [name.upper().strip("/") for name in devices]
    )
    missing = [name for name in names if name not in known]
    if missing or not names or (isinstance(devices, int) and devices > len(mine)):
        raise ValueError(f"`devices` must be devices of this process, which has {known}. Received: devices={devices!r}.")
    return names
