"""A Keras model whose layers run on several devices, several minibatches at a time."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.pipeline.balance import stage_starts
from tfdist.pipeline.checks import check_model
from tfdist.pipeline.checks import check_optimizer
from tfdist.pipeline.checks import check_strategy
from tfdist.pipeline.cut import cut
from tfdist.pipeline.lookahead import Lookahead
from tfdist.pipeline.microbatch_engine import MicrobatchEngine
from tfdist.pipeline.places import agree_on
from tfdist.pipeline.places import resolve
from tfdist.pipeline.round_engine import RoundEngine
from tfdist.pipeline.stages import Stages

SCHEDULES = ("spectrain", "stale", "stash", "gpipe")


@keras.saving.register_keras_serializable(package="tfdist")
class PipelineModel(keras.Model):
    """Cuts a model into stages, one for each device, and runs minibatches through them without draining.

    ```
    "gpipe"      the micro-batches of one batch forward, then backward, then one update     the plain model's weights
    others       a forward pass of a new minibatch and a backward pass of an old one in turns; each stage updates W after each
                 backward pass, while later minibatches are under way:
    "stale"      all passes with W as it is
    "stash"      the backward pass with the W of its forward pass                           N - k copies of W on stage k of N
    "spectrain"  all passes with W - s * eta * v, what W will be when the minibatch ends    s: updates until then; v: momentum
    ```

    An epoch begins with empty stages and ends when the last minibatch has left them: none is lost or trained on twice. Metrics are
    of the minibatches that have come to the last stage. Use `compile(steps_per_execution=)` above 1: stages then begin the next
    minibatch while others are still at this one.

    Under a `HierarchicalStrategy(pipelined=True)` each process has a pipeline over its devices, trains on its rows of each batch,
    and gradients are summed over processes stage by stage.

    Args:
        model: A Sequential model with an Input, or a Functional one. It is left alone until `unpipelined`.
        devices: Names such as "CPU:1", a number of this process's devices, or None for all of them.
        schedule: One of those above. Defaults to `"spectrain"`.
        microbatches: Those of a batch, for "gpipe", 1 or more. Defaults to the number of stages.
        balance: What is made even: "time", measured here, "parameters", or a list of the number of layers of each stage.
            Defaults to `"time"`.
        recompute: Whether activations are computed again in the backward pass, which saves the memory that they take in between.
            Defaults to `False`.

    Raises:
        ValueError: If the model cannot be cut, there are more stages than layers, or an argument is not known; in `fit`, if the
            optimizer does not go with the schedule.

    Example:
        >>> layers = [keras.layers.Dense(4, activation="relu") for _ in range(4)]
        >>> model = PipelineModel(keras.Sequential([keras.Input((4,)), *layers]), devices=1, balance="parameters")
        >>> model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", steps_per_execution=2)
        >>> history = model.fit(np.ones((8, 4)), np.ones((8, 4)), batch_size=2, verbose=0)
        >>> plain = model.unpipelined()

    Reference:
        Huang et al. 2018 (GPipe), arXiv 1811.06965. Harlap et al. 2018 (PipeDream), arXiv 1806.03377. Chen, Yang and Cheng 2018
        (SpecTrain), arXiv 1809.02839, equation 4. Here s is counted for the schedule that runs, and equals the paper's.
    """

    def __init__(
        self,
        model: Any,
        devices: Sequence[str] | int | None = None,
        schedule: str = "spectrain",
        microbatches: int | None = None,
        balance: str | Sequence[int] = "time",
        recompute: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if schedule not in SCHEDULES:
            raise ValueError(f"`schedule` must be one of {list(SCHEDULES)}. Received: schedule={schedule!r}.")
        if microbatches is not None and microbatches < 1:
            raise ValueError(f"`microbatches` must be 1 or more. Received: microbatches={microbatches}.")
        strategy = tf.distribute.get_strategy()
        check_strategy(strategy)
        check_model(model)
        self.schedule, self.recompute = schedule, recompute
        self.has_strategy = tf.distribute.has_strategy()
        places = resolve(devices, strategy)
        self.microbatches = microbatches or len(places)
        calls = _keras.layer_calls(model)
        starts = agree_on(strategy, stage_starts(model, len(places), balance))
        ends = [*starts[1:], len(calls)]
        device_of = {
            call.layer.name: device for device, start, end in zip(places, starts, ends, strict=True) for call in calls[start:end]
        }
        self.model = _keras.copy_on_devices(model, device_of)
        self.output_names = _keras.output_names(self.model)
        # Keras would count the weights and losses of what it finds in attributes twice.
        self._hidden = SimpleNamespace(
            plain=model,
            devices=places,
            layers_of_stages=[end - start for start, end in zip(starts, ends, strict=True)],
            cut=cut(self.model, starts),
            engine=None,
            ahead=None,
            iterator=None,
        )
        self._extra_losses: list[Any] | None = None
        self.built = True

    def call(self, inputs: Any, training: Any = None) -> Any:
        tensors = dict(zip(self._hidden.cut.inputs, _keras.inputs_of(self.model, inputs), strict=True))
        for part, device in zip(self._hidden.cut.parts, self._hidden.devices, strict=True):
            given = [tensors[i] for i in part.uses]
            with tf.device(device):
                found = part.model(given if len(given) > 1 else given[0], training=training)
            tensors.update(zip(part.makes, tf.nest.flatten(found), strict=True))
        return _keras.outputs_like(self.model, [tensors[i] for i in self._hidden.cut.outputs])

    @property
    def losses(self) -> Any:
        return super().losses if self._extra_losses is None else self._extra_losses

    @property
    def overlaps_minibatches(self) -> bool:
        """Whether a minibatch begins before an earlier one has ended."""
        return self.schedule != "gpipe" and len(self._hidden.devices) > 1

    @property
    def minibatches_under_way(self) -> int:
        """How many minibatches are between their first and their last pass; 0 outside of an epoch."""
        return 0 if self._hidden.engine is None else int(self._hidden.engine.minibatches_under_way)

    @property
    def waiting_weight_bytes(self) -> int:
        """The size of the copies of weights that wait for a backward pass, beside the variables; not 0 with "stash" only."""
        return 0 if self._hidden.engine is None else int(self._hidden.engine.weight_bytes())

    def compile(self, optimizer: Any = "rmsprop", *args: Any, **kwargs: Any) -> None:
        super().compile(optimizer, *args, **{**kwargs, "jit_compile": False})
        self._hidden.engine = None

    def compile_from_config(self, config: dict[str, Any]) -> None:
        self.compile(**keras.saving.deserialize_keras_object(config))
        _keras.build(self.optimizer, list(self.model.trainable_variables))

    def unpipelined(self) -> Any:
        """The model that this one was made of, with the weights of now."""
        self._hidden.plain.set_weights(self.model.get_weights())
        return self._hidden.plain

    def get_config(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": keras.saving.serialize_keras_object(self._hidden.plain),
            "devices": self._hidden.devices,
            "schedule": self.schedule,
            "microbatches": self.microbatches,
            "balance": self._hidden.layers_of_stages,
            "recompute": self.recompute,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        plain = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        return cls(plain, **{name: value for name, value in config.items() if name != "model"})

    def make_train_function(self, force: bool = False) -> Any:
        if getattr(self, "train_function", None) is not None and not force:
            return self.train_function
        if self._hidden.engine is not None and self._hidden.engine.minibatches_under_way == 0:
            self._hidden.engine = None  # a callback wants the step to be traced again
        self.train_function: Any = self._train_on_next
        return self.train_function

    # A step ----------------------------------------------------------------------------------------------------------------

    def _train_on_next(self, iterator: Any) -> dict[str, Any]:
        batches, is_last = self._next_batches(iterator)
        engine = self._get_engine(batches[0])
        if iterator is not self._hidden.iterator:
            engine.begin()
        engine.train(batches, is_last=is_last)
        self._hidden.iterator = None if is_last else iterator
        logs: dict[str, Any] = self.get_metrics_result()
        return logs

    def _next_batches(self, iterator: Any) -> tuple[list[Any], bool]:
        """Those that Keras wants trained on at once, and whether the epoch ends with them."""
        count, is_last = _keras.steps_of_execution()
        if is_last is not None:
            return [self._unpack(next(iterator)) for _ in range(count)], is_last
        if self._hidden.ahead is None or self._hidden.ahead.iterator is not iterator:
            self._hidden.ahead = Lookahead(iterator)
        batches, is_last = self._hidden.ahead.next(count)
        return [self._unpack(batch) for batch in batches], is_last

    def _unpack(self, batch: Any) -> Any:
        local = self.distribute_strategy.experimental_local_results
        return _keras.unpack_batch(tf.nest.map_structure(lambda tensor: local(tensor)[0], batch))

    def _get_engine(self, batch: Any) -> Any:
        if self._hidden.engine is None:
            check_optimizer(self.optimizer, self.schedule)
            if _keras.is_keras_loss_scale(self.optimizer):
                LossScaleOptimizer.take_over(self.optimizer)
            with self.distribute_strategy.scope():
                _keras.build(self.optimizer, list(self.model.trainable_variables))
            self.distribute_strategy.run(self._make_engine, args=(batch,))
        return self._hidden.engine

    def _make_engine(self, batch: Any) -> None:
        _keras.build_metrics(self, batch)
        stages = Stages(self, self._hidden.cut, self._hidden.devices, self.recompute)
        if self.schedule == "gpipe":
            self._hidden.engine = MicrobatchEngine(stages, self.optimizer, self.microbatches)
        else:
            self._hidden.engine = RoundEngine(stages, self.optimizer, self.schedule)
