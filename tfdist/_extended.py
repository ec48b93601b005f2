"""The only file that touches TensorFlow's internals: how a strategy makes variables, feeds replicas and sums their values.

One step, as `Strategy.run` traces it:

    1  the ranks meet, and learn the rows of the whole batch
    2  each replica runs the user's function                     losses are divided by the batch's rows, not by replicas
    3  batch_reduce_to: sum over devices, then over ranks        called by the optimizer, with all gradients at once
    4  what replicas wrote for themselves is put together        metrics: summed, statistics: averaged
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_ops
from tensorflow.python.distribute import cross_device_utils
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute import input_util
from tensorflow.python.distribute import mirrored_strategy
from tensorflow.python.distribute import reduce_util
from tensorflow.python.distribute import values
from tensorflow.python.distribute import values_util
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from tfdist import _keras
from tfdist.collectives.executor import Executor
from tfdist.data import count_rows
from tfdist.data import rank_dataset

_SUM = tf.VariableAggregation.SUM
_POLICY = tf.data.experimental.AutoShardPolicy


class HierarchicalExtended(mirrored_strategy.MirroredExtended):
    """MirroredStrategy's extended, whose sums, data and variables reach over all ranks."""

    def __init__(self, strategy: Any, devices: list[str], executor: Executor, rank: int, size: int) -> None:
        self._executor = executor
        self._rank, self._size = rank, size
        self._step: _Step | None = None
        self._new_variables: list[weakref.ref[Any]] = []
        self._cluster_resolver = None
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

    def _use_merge_call(self) -> bool:
        # Without merge_call, TensorFlow would reduce over this process's devices only.
        return self._size > 1 or super()._use_merge_call()

    # Data ------------------------------------------------------------------------------------------------------------------

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        policy = dataset.options().experimental_distribute.auto_shard_policy
        if policy in (_POLICY.FILE, _POLICY.HINT, _POLICY.OFF):
            workers = self._input_workers_with_options(options)
            return input_util.get_distributed_dataset(
                dataset,
                workers,
                self._container_strategy(),
                num_replicas_in_sync=len(self._devices) * self._size,
                input_context=self._input_context(),
                options=options,
            )
        parts = rank_dataset(dataset, self._rank, self._size, len(self._devices))
        distributed = self._rank_dataset(lambda _: parts, options)
        # All ranks read the same batches, so all see the end in the same step: nobody need be asked.
        distributed._enable_get_next_as_optional = False
        return distributed

    def _distribute_datasets_from_function(self, dataset_fn: Callable[[Any], Any], options: Any) -> Any:
        return self._rank_dataset(dataset_fn, options)

    def _rank_dataset(self, dataset_fn: Callable[[Any], Any], options: Any) -> _RankDataset:
        return _RankDataset(
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
        if len(self._devices) * self._size == 1:
            return super()._call_for_each_replica(fn, args, kwargs)
        outer, self._step = self._step, _Step(_purpose(fn))
        try:
            self.broadcast_new_variables()
            self._step.parts = self._batch_parts(self._step, args, kwargs)
            outputs = super()._call_for_each_replica(fn, args, kwargs)
            self._combine(self._step)
            self.broadcast_new_variables()
        finally:
            self._step = outer
        return outputs

    def _batch_parts(self, step: _Step, args: Any, kwargs: Any) -> list[BatchPart] | None:
        """What part of the global batch each local replica has; None if that is known to be the same for all."""
        counts = [count_rows(distribute_utils.select_replica(i, (args, kwargs))) for i in range(len(self._devices))]
        known = None not in counts
        total = tf.add_n(counts) if known else tf.constant(0, tf.int64)
        if self._size > 1:
            total = self._executor.meet(step.describe, total)
        elif known and len({tf.get_static_value(count) for count in counts} - {None}) == 1 and _all_static(counts):
            return None
        replicas = len(self._devices) * self._size
        return [BatchPart.make(replicas, count, total) for count in counts] if known else None

    def _combine(self, step: _Step) -> None:
        """Puts together what each replica wrote into its own copy of a variable."""
        written = [v for v in step.written.values() if self._size > 1 or v.aggregation != _SUM]
        sums = [self._sum_copies(variable, step.parts) for variable in written]
        for variable, value in zip(written, self._executor.all_reduce(sums), strict=True):
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
        totals = self._sum_ranks([self._sum_devices(value) for value, _ in value_destination_pairs])
        if reduce_op == reduce_util.ReduceOp.MEAN:
            totals = [_scale(total, 1 / (len(self._devices) * self._size)) for total in totals]
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
        total = self._sum_ranks([value])[0]
        return total if reduce_op == reduce_util.ReduceOp.SUM else _scale(total, 1 / self._size)

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: int, options: Any) -> Any:
        del options
        local = tf.concat(self._container_strategy().experimental_local_results(value), axis)
        order = [axis, *(other for other in range(local.shape.rank) if other != axis)]
        gathered = self._executor.all_gather(tf.transpose(local, order) if axis else local)
        if axis:
            gathered = tf.transpose(gathered, tf.math.invert_permutation(order))
        return cross_device_ops.simple_broadcast(gathered, destinations, always_mirrored=True)

    def _sum_devices(self, value: Any) -> Any:
        copies = value.values if isinstance(value, values.DistributedValues) else (tf.convert_to_tensor(value),)
        with ops.device(copies[0].device or self._devices[0]):
            return cross_device_utils.aggregate_tensors_or_indexed_slices(list(copies), tf.add_n)

    def _sum_ranks(self, local: list[Any]) -> list[Any]:
        """Sums over ranks: dense tensors in buckets, slices by gathering them, with each row of a variable at most once."""
        if self._size == 1:
            return local
        if self._step is not None:
            self._step.note_sums(local)
        elif tf.executing_eagerly():
            self._executor.meet(lambda: f"sum {len(local)} values", 0)
        dense = [index for index, value in enumerate(local) if not isinstance(value, tf.IndexedSlices)]
        totals = dict(zip(dense, self._executor.all_reduce([local[index] for index in dense]), strict=True))
        for index, value in enumerate(local):
            if index not in totals:
                slices = _merge_duplicates(value)
                rows = self._executor.all_gather(slices.values)
                totals[index] = _merge_duplicates(
                    tf.IndexedSlices(rows, self._executor.all_gather(slices.indices), slices.dense_shape)
                )
        return [totals[index] for index in range(len(local))]

    # Variables -------------------------------------------------------------------------------------------------------------

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        # An optimizer places each slot beside its variable; slots are updated from sums, so no replica has its own.
        is_slot = kwargs.get("colocate_with") is not None
        variable = super()._create_variable(next_creator, **kwargs)
        cls = _OUR_CLASSES.get(type(variable))
        if cls is None or len(self._devices) * self._size == 1:
            return variable
        # TensorFlow takes the classes from a table of its module; ours add behaviour, not state.
        variable.__class__ = cls
        variable.tfdist_is_slot = is_slot
        if self._size > 1:
            self._new_variables.append(weakref.ref(variable))
            if cls is _OnReadVariable and variable.aggregation == _SUM:
                with ops.init_scope(), ops.device("CPU:0"):
                    start = variable.values[0].read_value() * len(self._devices) * self._size
                    variable.tfdist_total = resource_variable_ops.ResourceVariable(start, trainable=False)
        return variable

    def broadcast_new_variables(self) -> None:
        """Gives all ranks the first rank's values of the variables that were made since the last call."""
        if not self._new_variables:
            return
        call = _keras.current_call()
        alive = [variable for variable in (ref() for ref in self._new_variables) if variable is not None]
        if call is not None:
            # A rank may have made other models too; the ranks have compared this one.
            used = {id(variable) for variable in _keras.all_variables(call.model)}
            alive = [variable for variable in alive if id(variable) in used]
        chosen = {id(variable) for variable in alive}
        self._new_variables = [ref for ref in self._new_variables if ref() is not None and id(ref()) not in chosen]
        with ops.init_scope():
            self.broadcast_variables(alive)

    def broadcast_variables(self, variables: Iterable[Any]) -> None:
        """Gives all ranks the first rank's values; all must pass the same variables."""
        variables = [variable for variable in variables if variable.dtype != tf.string]
        if self._size == 1 or not variables:
            return
        shapes = ", ".join(f"{variable.name} {tuple(variable.shape)}" for variable in variables)
        self._executor.meet(lambda: f"receive rank 0's values of {len(variables)} variables: {shapes}", 0)
        for variable in variables:
            copies = getattr(variable, "values", (variable,))
            value = self._executor.communicator.broadcast_array(copies[0].numpy())
            for copy in copies:
                copy.assign(value)


class _RankDataset(input_lib.DistributedDatasetsFromFunction):
    """One rank's dataset, which counts steps: each takes one element for each of the rank's replicas."""

    @property
    def cardinality(self) -> Any:
        elements = super().cardinality
        replicas = len(self._strategy.extended.worker_devices)
        return tf.where(elements > 0, (elements + replicas - 1) // replicas, elements)


class _Step:
    """What one call of `Strategy.run` is for, and what it has done so far."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._sums: list[str] = []
        self.parts: list[BatchPart] | None = None
        self.written: dict[int, Any] = {}

    def note_sums(self, sums: list[Any]) -> None:
        self._sums += [f"{tuple(value.shape)} {value.dtype.name}" for value in sums]

    def describe(self) -> str:
        if not self._sums:
            return self._purpose
        shapes = ", ".join(self._sums)
        return f"{self._purpose}, which sums {len(self._sums)} tensors ({shapes[:80]}..., {zlib.crc32(shapes.encode()):08x})"


class BatchPart(float):
    """The number of replicas, as one replica must use it in a step whose batch may not be divided evenly.

    Keras, and users who follow TensorFlow's guide, divide a replica's mean loss by the number of replicas R, since gradients are
    summed. That weights each row the same only if every replica has as many rows as any other. A replica with n of the batch's N
    rows must divide by N/n instead: then the sum over replicas is the mean over the batch, and regularisation counts once.

    It prints and compares as R; where it divides or meets a tensor, it is N/n.
    """

    share: Any
    count: Any

    @classmethod
    def make(cls, replicas: int, rows: Any, total_rows: Any) -> BatchPart:
        part = cls(replicas)
        rows, total_rows = tf.cast(rows, tf.float32), tf.cast(total_rows, tf.float32)
        part.share = tf.math.divide_no_nan(rows, total_rows)
        part.count = tf.math.divide_no_nan(total_rows, rows)
        return part

    def __rtruediv__(self, other: Any) -> Any:
        share = tf.cast(self.share, other.dtype) if tf.is_tensor(other) else self.share
        return other * share

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        del name
        dtype = tf.as_dtype(dtype or tf.float32)
        return tf.cast(self.count, dtype) if dtype.is_floating else tf.constant(int(self), dtype)


class _OnReadVariable(values.SyncOnReadVariable):
    """A metric's state, or Keras 2's moving statistics: each replica writes its own copy.

    Outside of a replica, it is read without asking the other ranks: a sum from `tfdist_total`, a mean from the first copy, both of
    which every step brings up to date. So any rank may read, print and save it when it likes.
    """

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        extended = self._distribute_strategy.extended
        step, copy = extended._step, self._get_on_device_or_primary()
        if step is None:
            return update_fn(copy, value, **kwargs)
        step.written.setdefault(id(self), self)
        if step.parts is None:
            return update_fn(copy, value, **kwargs)
        # The mean over no rows is NaN, and would stay in the state.
        rows = step.parts[values_util.get_current_replica_id_as_int()].share
        before = copy.read_value()
        update_fn(copy, value, **kwargs)
        return copy.assign(tf.where(rows > 0, copy.read_value(), before))

    def _get_cross_replica(self) -> Any:
        if self._distribute_strategy.extended._size == 1 or self._aggregation not in (_SUM, tf.VariableAggregation.MEAN):
            return super()._get_cross_replica()
        return tf.identity(self.tfdist_total if self._aggregation == _SUM else self._get_replica(0))

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().assign(value, *args, **kwargs)
        if hasattr(self, "tfdist_total") and tf.distribute.get_replica_context() is None:
            self.tfdist_total.assign(tf.cast(value, self.dtype))
        return result


class _MirroredVariable(values.MirroredVariable):
    """A variable that is equal on all replicas; where a replica may write to its own copy, the copies are averaged after the step."""

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        step = self._distribute_strategy.extended._step
        own_copy = self._aggregation == tf.VariableAggregation.NONE and self.dtype.is_floating
        if step is not None and own_copy and not self.trainable and not self.tfdist_is_slot:
            step.written.setdefault(id(self), self)
        return super()._update_replica(update_fn, value, **kwargs)


_OUR_CLASSES = {values.SyncOnReadVariable: _OnReadVariable, values.MirroredVariable: _MirroredVariable}


def share_seed(seed: int) -> None:
    """Sets TensorFlow's global seed unless the user has, so that all ranks shuffle alike."""
    if context.global_seed() is None:
        tf.random.set_seed(seed)


def global_seed() -> int | None:
    """TensorFlow's global seed."""
    seed: int | None = context.global_seed()
    return seed


def _purpose(fn: Any) -> str:
    call = _keras.current_call()
    name = getattr(fn, "__name__", type(fn).__name__)
    return f"{call.method}: {name}" if call else f"run {name}"


def _all_static(counts: list[Any]) -> bool:
    return all(tf.get_static_value(count) is not None for count in counts)


def _scale(value: Any, factor: float) -> Any:
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(value.values * tf.cast(factor, value.dtype), value.indices, value.dense_shape)
    if not value.dtype.is_floating:
        return tf.cast(tf.cast(value, tf.float64) * factor, value.dtype)
    return value * tf.cast(factor, value.dtype)


def _merge_duplicates(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    indices, positions = tf.unique(slices.indices)
    rows = tf.math.unsorted_segment_sum(slices.values, positions, tf.size(indices))
    return tf.IndexedSlices(rows, indices, slices.dense_shape)
