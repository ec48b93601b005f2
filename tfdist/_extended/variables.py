"""Variables of which each replica has a copy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import values
from tensorflow.python.distribute import values_util


class _Number:
    """What a plain variable can do and TensorFlow's distributed ones cannot: `int(optimizer.iterations)`."""

    def __int__(self: Any) -> int:
        return int(self.numpy())

    def __float__(self: Any) -> float:
        return float(self.numpy())


class OnReadVariable(_Number, values.SyncOnReadVariable):
    """A metric's state, or Keras 2's moving statistics: each replica writes its own copy.

    Outside of a replica, it is read without asking the other ranks: a sum from `tfdist_total`, a mean from the first copy, both of
    which every step brings up to date. So any rank may read, print and save it when it likes.
    """

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        extended = self._distribute_strategy.extended
        step, copy = extended._step, self._get_on_device_or_primary()
        if step is None:
            return update_fn(copy, value, **kwargs)
        mean = self._aggregation == tf.VariableAggregation.MEAN and self.dtype.is_floating
        if self._aggregation == tf.VariableAggregation.SUM or mean:
            step.written.setdefault(id(self), self)
        if step.parts is None:
            return update_fn(copy, value, **kwargs)
        # The mean over no rows is NaN, and would stay in the state.
        rows = step.parts[values_util.get_current_replica_id_as_int()].share
        before = copy.read_value()
        update_fn(copy, value, **kwargs)
        # Keras 2 under mixed precision asks for the operation, not for the variable.
        return copy.assign(tf.where(rows > 0, copy.read_value(), before), read_value=kwargs.get("read_value", True))

    def _get_cross_replica(self) -> Any:
        if self._distribute_strategy.extended._size == 1 or self._aggregation not in (
            tf.VariableAggregation.SUM,
            tf.VariableAggregation.MEAN,
        ):
            return super()._get_cross_replica()
        return tf.identity(self.tfdist_total if self._aggregation == tf.VariableAggregation.SUM else self._get_replica(0))

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().assign(value, *args, **kwargs)
        if hasattr(self, "tfdist_total") and tf.distribute.get_replica_context() is None:
            self.tfdist_total.assign(tf.cast(value, self.dtype))
        return result


class MirroredVariable(_Number, values.MirroredVariable):
    """A variable that is equal on all replicas; what replicas write to their own copies is averaged after the step."""

    def _update_replica(self, update_fn: Any, value: Any, **kwargs: Any) -> Any:
        step = self._distribute_strategy.extended._step
        own_copy = self._aggregation == tf.VariableAggregation.NONE and self.dtype.is_floating
        if step is not None and own_copy and not self.trainable and not self.tfdist_is_slot:
            step.written.setdefault(id(self), self)
        return super()._update_replica(update_fn, value, **kwargs)


OUR_CLASSES = {values.SyncOnReadVariable: OnReadVariable, values.MirroredVariable: MirroredVariable}
