"""Datasets and iterators that feed the replicas of one process."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any
from typing import ClassVar

import tensorflow as tf
from tensorflow.python.distribute import distribute_utils
from tensorflow.python.distribute import input_lib
from tensorflow.python.types import distribute


class RankDataset(distribute.DistributedDatasetInterface):
    """A dataset whose elements hold the parts of all replicas of this process.

    It is read on the host, by a plain iterator. TensorFlow's iterator over several devices runs threads of its own, which on busy
    CPUs outlive it when Keras drops it before its end, as `evaluate` does: seen as hangs and segmentation faults (2.21).

    Args:
        dataset: Each element is a tuple with one part for each replica, or, for one replica, the part itself.
        strategy: The strategy that runs the replicas.
        num_local: The replicas of this process.
    """

    def __init__(self, dataset: tf.data.Dataset, strategy: Any, num_local: int) -> None:
        self._dataset = dataset
        self._strategy = strategy
        self._num_local = num_local
        self.iterators_made = 0

    def skip(self, count: int) -> RankDataset:
        """The same without its first steps."""
        return RankDataset(self._dataset.skip(count), self._strategy, self._num_local)

    def __iter__(self) -> RankIterator:
        self.iterators_made += 1
        with tf.device("CPU:0"):
            return RankIterator(iter(self._dataset), self._strategy, self._num_local)

    @property
    def element_spec(self) -> Any:
        return _distributed_spec(self._dataset.element_spec, self._strategy, self._num_local)

    @property
    def cardinality(self) -> Any:
        """The number of steps."""
        return self._dataset.cardinality()

    def reduce(self, initial_state: Any, reduce_func: Any) -> Any:
        state = initial_state
        for element in self:
            state = reduce_func(state, element)
        return state


class RankIterator(tf.__internal__.CompositeTensor, distribute.DistributedIteratorInterface):
    """Yields, for each step, the parts of this process's replicas."""

    def __init__(self, iterator: Any, strategy: Any, num_local: int) -> None:
        self._iterator = iterator
        self._strategy = strategy
        self._num_local = num_local

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self.get_next()
        except tf.errors.OutOfRangeError:
            raise StopIteration from None

    def get_next(self) -> Any:
        """Returns the parts of the next batch; all ranks read the same batches, so nobody need be asked whether there is one."""
        return self._parts(self._iterator.get_next())

    def get_next_as_optional(self) -> Any:
        """Returns the parts of the next batch, or an empty optional at the end."""
        element = self._iterator.get_next_as_optional()
        spec = []

        def filled() -> Any:
            parts = tf.experimental.Optional.from_value(self._parts(element.get_value()))
            spec.append(parts.element_spec)
            return parts

        # tf.cond traces `filled` first.
        return tf.cond(element.has_value(), filled, lambda: tf.experimental.Optional.empty(spec[0]))

    def position(self) -> Any:
        """Where it is, with what a shuffle holds; datasets that call Python cannot tell."""
        return tf.raw_ops.SerializeIterator(resource_handle=self._iterator._iterator_resource, external_state_policy=1)

    def go_back(self, position: Any) -> None:
        """Moves it to a place that `position` returned."""
        tf.raw_ops.DeserializeIterator(resource_handle=self._iterator._iterator_resource, serialized=position)

    @property
    def element_spec(self) -> Any:
        return _distributed_spec(self._iterator.element_spec, self._strategy, self._num_local)

    def _parts(self, element: Any) -> Any:
        return distribute_utils.regroup((element,) if self._num_local == 1 else tuple(element))

    @property
    def _type_spec(self) -> RankIteratorSpec:
        return RankIteratorSpec.of(self._iterator._type_spec, self._strategy, self._num_local)


class RankIteratorSpec(tf.TypeSpec):
    """Lets a `tf.function` take a `RankIterator`.

    A type's description is made of plain values, so the strategy is in it by number.
    """

    _strategies: ClassVar[weakref.WeakValueDictionary[int, Any]] = weakref.WeakValueDictionary()

    def __init__(self, iterator_spec: Any, strategy_id: int, num_local: int) -> None:
        self._iterator_spec = iterator_spec
        self._strategy_id = strategy_id
        self._num_local = num_local

    @classmethod
    def of(cls, iterator_spec: Any, strategy: Any, num_local: int) -> RankIteratorSpec:
        """Describes an iterator of a strategy."""
        cls._strategies[id(strategy)] = strategy
        return cls(iterator_spec, id(strategy), num_local)

    @property
    def value_type(self) -> type[RankIterator]:
        return RankIterator

    @property
    def _component_specs(self) -> Any:
        return self._iterator_spec

    def _serialize(self) -> Any:
        return self._iterator_spec, self._strategy_id, self._num_local

    def _to_components(self, value: RankIterator) -> Any:
        return value._iterator

    def _from_components(self, components: Any) -> RankIterator:
        return RankIterator(components, self._strategies[self._strategy_id], self._num_local)


def _distributed_spec(spec: Any, strategy: Any, num_local: int) -> Any:
    part = spec if num_local == 1 else tf.nest.map_structure(_merge_specs, *spec)
    return input_lib._create_distributed_tensor_spec(strategy, part)


def _merge_specs(first: Any, *others: Any) -> Any:
    for other in others:
        first = first.most_specific_compatible_type(other)
    return first


class FunctionDataset(input_lib.DistributedDatasetsFromFunction):
    """What a user's function makes on each rank; counts steps: each takes one element for each of the rank's replicas."""

    @property
    def cardinality(self) -> Any:
        elements = super().cardinality
        replicas = len(self._strategy.extended.worker_devices)
        return tf.where(elements > 0, (elements + replicas - 1) // replicas, elements)
