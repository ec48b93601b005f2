"""How a strategy makes variables, feeds replicas and sums their values.

One step, as `Strategy.run` traces it:

    1  the ranks meet, and learn the rows of the whole batch
    2  each replica runs the user's function                     losses are divided by the batch's rows, not by replicas
    3  batch_reduce_to: sum over devices, then over ranks        called by the optimizer, with all gradients at once
    4  what replicas wrote for themselves is put together        metrics: summed, statistics: averaged
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops
from tensorflow.python.distribute import cross_device_utils
from tensorflow.python.distribute import device_util
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute import mirrored_strategy
from tensorflow.python.distribute import reduce_util
from tensorflow.python.distribute import values
from tensorflow.python.distribute import values_util
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from tfdist import _keras
from tfdist._extended.batch_part import BatchPart
from tfdist._extended.decision import check_decision
from tfdist._extended.gradients import merge_duplicates
from tfdist._extended.gradients import scale
from tfdist._extended.gradients import zero_without_rows
from tfdist._extended.inputs import FunctionDataset
from tfdist._extended.inputs import RankDataset
from tfdist._extended.new_variables import NewVariables
from tfdist._extended.noise_scale import NoiseScaleMeter
from tfdist._extended.over_ranks import OverRanks
from tfdist._extended.step import Step
from tfdist._extended.variables import OnReadVariable
from tfdist._extended.variables import OUR_CLASSES
from tfdist.collectives.bucket_sum import Kept
from tfdist.collectives.executor import Executor
from tfdist.collectives.step_clock import StepClock
from tfdist.rows import count_rows
from tfdist.rows import rank_dataset
from tfdist.rows import take_rows

_SUM = tf.VariableAggregation.SUM
_POLICY = tf.data.experimental.AutoShardPolicy


class HierarchicalExtended(OverRanks, mirrored_strategy.MirroredExtended):
    """MirroredStrategy's extended, whose sums, data and variables reach over all ranks."""

    def __init__(self, strategy: Any, devices: list[str], executor: Executor, rank: int, size: int) -> None:
        self._executor = executor
        self._rank, self._size = rank, size
        self._step: Step | None = None
        self.noise_scale_meter: NoiseScaleMeter | None = None
        self._new_variables = NewVariables(executor, size)
        self._kept_by_model: weakref.WeakKeyDictionary[Any, dict[int, dict[Any, Kept]]] = weakref.WeakKeyDictionary()
        self._kept_outside: dict[int, dict[Any, Kept]] = {}
        # What Keras reads of TensorFlow's own strategy for several processes.
        self._cluster_resolver = None
        self._task_type, self._task_id = "worker", rank
        super().__init__(strategy, devices=devices, cross_device_ops=cross_device_ops.ReductionToOneDevice())

    # Who and how many ------------------------------------------------------------------------------------------------------

    @property
    def _num_replicas_in_sync(self) -> Any:
        count = len(self._devices) * self._size
        if self._step is None or self._step.parts is None or tf.distribute.get_replica_context() is None:
            return count
        return self._step.parts[values_util.get_current_replica_id_as_int()]

    def _get_replica_id_in_sync_group(self, replica_id: Any) -> Any:
        return self._rank * len(self._devices) + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group - self._rank * len(self._devices)

    def _in_multi_worker_mode(self) -> bool:
        return self._size > 1

    @property
    def should_checkpoint(self) -> bool:
        # By this, Keras 2 lets all other ranks write to folders that it removes again.
        return self._rank == 0

    def _use_merge_call(self) -> bool:
        # Without merge_call, TensorFlow would reduce over this process's devices only.
        return self._size > 1 or super()._use_merge_call()

    # Data ------------------------------------------------------------------------------------------------------------------

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        del options
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if self._size > 1 and policy not in (_POLICY.AUTO, _POLICY.DATA):
            raise ValueError(
                "The auto-shard policy must be AUTO or DATA, by which each rank takes its rows of each batch; by another, Keras "
                "counts the steps wrongly and leaves rows out. For data that each rank has for itself, use "
                f"strategy.distribute_datasets_from_function. Received: auto_shard_policy={policy.name}."
            )
        num_local = len(self._devices)
        return RankDataset(rank_dataset(dataset, self._rank, self._size, num_local), self._container_strategy(), num_local)

    def _distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any) -> Any:
        return FunctionDataset(
            self._input_workers_with_options(options),
            self._container_strategy(),
            input_contexts=[self._input_context()],
            dataset_fn=dataset_fn,
            options=options,
        )

    def _input_context(self) -> tf.distribute.InputContext:
        return tf.distribute.InputContext(self._size, self._rank, len(self._devices) * self._size)

    # A step ----------------------------------------------------------------------------------------------------------------

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        # Inside of a step, optimizers call replicas again where they decide something together.
        if self._step is not None:
            check_decision(getattr(fn, "__self__", None))
        if len(self._devices) * self._size == 1 or self._step is not None:
            return super()._call_for_each_replica(fn, args, kwargs)
        outer, self._step = self._step, Step(fn)
        try:
            self.broadcast_new_variables()
            if _keras.passes_whole_batch(_keras.current_call()):
                args = self._divide(args)
            self._step.parts = self._batch_parts(self._step, args, kwargs)
            outputs = super()._call_for_each_replica(fn, args, kwargs)
            self._combine(self._step)
            self.broadcast_new_variables()
        finally:
            self._step = outer
        return outputs

    def _divide(self, batch: Any) -> Any:
        replicas = len(self._devices) * self._size
        parts = (take_rows(batch, local * self._size + self._rank, replicas) for local in range(len(self._devices)))
        return distribute_utils.regroup(tuple(parts))

    def _batch_parts(self, step: Step, args: Any, kwargs: Any) -> list[BatchPart] | None:
        """What part of the global batch each local replica has; None if that is known to be the same for all."""
        counts = [count_rows(distribute_utils.select_replica(i, (args, kwargs))) for i in range(len(self._devices))]
        known = None not in counts
        total = tf.add_n(counts) if known else tf.constant(0, tf.int64)
        if self._size > 1:
            total = self._executor.meet(step.describe, total)
        step.rows = total if known else None
        if self._size == 1 and known and _equal_and_static(counts):
            return None
        replicas = len(self._devices) * self._size
        return [BatchPart.make(replicas, count, total) for count in counts] if known else None

    def _combine(self, step: Step) -> None:
        """Puts together what each replica wrote into its own copy of a variable."""
        written = [v for v in step.written.values() if self._size > 1 or v.aggregation != _SUM]
        sums = [self._sum_copies(variable, step.parts) for variable in written]
        for variable, value in zip(written, self._executor.all_reduce([[total] for total in sums]), strict=True):
            if variable.aggregation == _SUM:
                variable.tfdist_total.assign(value)
            else:
                for copy in variable.values:
                    with ops.device(copy.device):
                        copy.assign(value)

    def _sum_copies(self, variable: Any, parts: list[BatchPart] | None) -> Any:
        copies = [copy.read_value() for copy in variable.values]
        if variable.aggregation != _SUM:
            weights = [part.share for part in parts] if parts else [1 / (len(copies) * self._size)] * len(copies)
            # A replica without rows has nothing to say, and may say NaN.
            copies = [tf.math.multiply_no_nan(c, tf.cast(w, c.dtype)) for c, w in zip(copies, weights, strict=True)]
        return tf.add_n(copies)

    # Sums ------------------------------------------------------------------------------------------------------------------

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        del options
        totals = self._sum_in_step([self._copies(value) for value, _ in value_destination_pairs])
        if reduce_op == reduce_util.ReduceOp.MEAN:
            totals = [scale(total, 1 / (len(self._devices) * self._size)) for total in totals]
        return [
            cross_device_ops.simple_broadcast(total, destinations, always_mirrored=True)
            for total, (_, destinations) in zip(totals, value_destination_pairs, strict=True)
        ]

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if self._size == 1:
            return super()._reduce_to(reduce_op, value, destinations, options)
        if isinstance(value, int | float):
            return cross_device_ops.reduce_non_distributed_value(reduce_op, value, destinations, self._num_replicas_in_sync)
        if distribute_utils.is_mirrored(value) and reduce_op == reduce_util.ReduceOp.MEAN:
            return value
        if isinstance(value, values.DistributedValues):
            return self._batch_reduce_to(reduce_op, [(value, destinations)], options)[0]
        # One value a rank, such as whether a dataset has another batch.
        value = tf.convert_to_tensor(value)
        if value.dtype == tf.int64 and value.shape.num_elements() == 1 and reduce_op == reduce_util.ReduceOp.SUM:
            return tf.reshape(self._executor.meet(lambda: "ask whether there is more data", tf.reshape(value, [])), value.shape)
        total = self._sum([[value]])[0]
        return total if reduce_op == reduce_util.ReduceOp.SUM else scale(total, 1 / self._size)

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: int, options: Any) -> Any:
        del options
        local = tf.concat(self._container_strategy().experimental_local_results(value), axis)
        order = [axis, *(other for other in range(local.shape.rank) if other != axis)]
        gathered = self._executor.all_gather(tf.transpose(local, order) if axis else local)
        if axis:
            gathered = tf.transpose(gathered, tf.math.invert_permutation(order))
        return cross_device_ops.simple_broadcast(gathered, destinations, always_mirrored=True)

    def _copies(self, value: Any) -> list[Any]:
        # What is not distributed is the same on every replica.
        copies = value.values if isinstance(value, values.DistributedValues) else (value,) * len(self._devices)
        copies = [copy if isinstance(copy, tf.IndexedSlices) else tf.convert_to_tensor(copy) for copy in copies]
        if self._step is not None and self._step.parts is not None and not self._step.is_clean:
            copies = [zero_without_rows(copy, part) for copy, part in zip(copies, self._step.parts, strict=False)]
        return copies

    def _kept(self) -> dict[Any, Kept] | None:
        """What compressors keep of the sums of this step, from step to step; one for each model, and each sum of its step."""
        if self._step is None:
            return None
        call = _keras.current_call()
        of_model = self._kept_by_model.setdefault(call.model, {}) if call else self._kept_outside
        return of_model.setdefault(self._step.number_of_sums, {})

    def _sum_in_step(self, local: list[list[Any]]) -> list[Any]:
        """Sums what may be gradients, which are then measured if a callback wants it."""
        step, meter = self._step, self.noise_scale_meter
        if step is None or step.rows is None or meter is None or not meter.is_for(local):
            return self._sum(local, self._kept())
        measured = meter.measure(local, step.parts, len(self._devices) * self._size)
        *totals, sums = self._sum([*local, measured], self._kept())
        meter.learn(totals, sums, step.rows)
        return totals

    def _sum(self, local: list[list[Any]], kept: dict[Any, Kept] | None = None) -> list[Any]:
        """Sums over devices and ranks: dense tensors in buckets, slices by gathering them, with each row of a variable once."""
        if self._step is not None:
            self._step.note_sums([copies[0] for copies in local])
        elif self._size > 1 and tf.executing_eagerly():
            self._executor.meet(lambda: f"sum {len(local)} values", 0)
        dense = [index for index, copies in enumerate(local) if not isinstance(copies[0], tf.IndexedSlices)]
        totals = dict(zip(dense, self._executor.all_reduce([local[index] for index in dense], kept), strict=True))
        return [totals[index] if index in totals else self._sum_slices(copies) for index, copies in enumerate(local)]

    def _sum_slices(self, copies: list[Any]) -> Any:
        with ops.device(copies[0].device or self._devices[0]):
            local = merge_duplicates(cross_device_utils.aggregate_tensors_or_indexed_slices(copies, tf.add_n))
        if self._size == 1:
            return local
        rows, indices = self._executor.all_gather(local.values), self._executor.all_gather(local.indices)
        return merge_duplicates(tf.IndexedSlices(rows, indices, local.dense_shape))

    def measure_steps(self, clock: StepClock | None) -> None:
        """Lets a clock measure what is traced from now on; None for nothing."""
        self._executor.clock = clock

    # Variables -------------------------------------------------------------------------------------------------------------

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        # An optimizer places each slot beside its variable; slots are updated from sums, so no replica has its own.
        is_slot = kwargs.get("colocate_with") is not None
        variable = super()._create_variable(next_creator, **kwargs)
        cls = OUR_CLASSES.get(type(variable))
        if cls is None:
            return variable
        # TensorFlow takes the classes from a table of its module; ours add behaviour, not state.
        variable.__class__ = cls
        variable.tfdist_is_slot = is_slot
        self._new_variables.add(variable)
        if self._size > 1 and cls is OnReadVariable and variable.aggregation == _SUM:
            with ops.init_scope(), ops.device("CPU:0"):
                start = variable.values[0].read_value() * len(self._devices) * self._size
                variable.tfdist_total = resource_variable_ops.ResourceVariable(start, trainable=False)
        return variable

    @contextlib.contextmanager
    def placing_on(self, device: str) -> Iterator[None]:
        """Variables that are made in here are on a device of a stage, though this process's replica computes elsewhere."""
        before: Any = self._devices
        self._devices: Any = (device_util.canonicalize(device),)
        try:
            yield
        finally:
            self._devices = before

    def broadcast_new_variables(self) -> None:
        """Gives all ranks the first rank's values of the variables that were made since the last call."""
        self._new_variables.broadcast_new()

    def broadcast_variables(self, variables: Iterable[Any]) -> None:
        """Gives all ranks the first rank's values; all must pass the same variables."""
        self._new_variables.broadcast(variables)


def _equal_and_static(counts: list[Any]) -> bool:
    sizes = {None if size is None else int(size) for size in map(tf.get_static_value, counts)}
    return len(sizes) == 1 and None not in sizes
