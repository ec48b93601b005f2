"""Which rows of a global batch belong to which replica."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def replica_rows(rows: Any, replica: int, num_replicas: int) -> tuple[Any, Any]:
    """The first row, and the one after the last, of one replica's part of a batch.

    ```
    rows = 10, num_replicas = 4          rows = 3, num_replicas = 4
    replica   0    1    2    3           replica   0   1   2   3
    rows     0-1  2-4  5-6  7-9          rows      -   0   1   2        replica 0 gets none
    ```

    Parts differ by one row at the most, and no row is left out or given twice.

    Args:
        rows: The rows of the batch: a number, or an integer tensor.
        replica: The replica's place in the order of rows, from 0.
        num_replicas: The number of replicas.

    Example:
        >>> [replica_rows(10, replica, 4) for replica in range(4)]
        [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return replica * rows // num_replicas, (replica + 1) * rows // num_replicas


def rank_dataset(dataset: tf.data.Dataset, rank: int, size: int, num_local: int) -> tf.data.Dataset:
    """Turns a dataset of global batches into one of the parts that a rank's replicas have of each batch.

    Each rank reads the whole dataset and keeps its rows, so all must read the same rows in the same order, and all see each batch
    and its end. Replicas come in the order in which Keras puts predictions together: the first replicas of all ranks, the second
    ones, and so on.

    ```
    2 ranks with 2 replicas each, a batch of 8 rows
    rank 0   0-1       4-5
    rank 1        2-3       6-7
    ```

    Args:
        dataset: The user's dataset, in global batches.
        rank: This process's rank.
        size: The number of processes.
        num_local: The replicas of this process.

    Returns:
        A dataset with one element for each batch: a tuple of `num_local` parts, or the part itself if `num_local` is 1. A part has
        no rows where a batch has fewer rows than there are replicas.
    """
    if size * num_local == 1:
        return dataset

    def parts(*batch: Any) -> Any:
        whole = batch if len(batch) > 1 else batch[0]
        taken = tuple(take_rows(whole, local * size + rank, size * num_local) for local in range(num_local))
        return taken if num_local > 1 else taken[0]

    return dataset.map(parts)


def take_rows(batch: Any, replica: int, num_replicas: int) -> Any:
    """The part of a batch that belongs to one replica; see `replica_rows`."""
    rows = count_rows(batch)
    if rows is None:
        raise ValueError(
            "A dataset must be batched before it is trained on by several replicas, so that there are rows to divide. Received: "
            f"elements without a batch dimension, {tf.nest.map_structure(lambda part: getattr(part, 'shape', part), batch)}."
        )
    start, end = replica_rows(rows, replica, num_replicas)

    def take(component: Any) -> Any:
        if isinstance(component, tf.SparseTensor):
            rest = component.dense_shape[1:]
            first = tf.concat([[start], tf.zeros_like(rest)], 0)
            return tf.sparse.slice(component, first, tf.concat([[end - start], rest], 0))
        return component[start:end] if _has_rows(component) else component

    return tf.nest.map_structure(take, batch)


def count_rows(batch: Any) -> Any:
    """The rows of a batch, as an int64 tensor: the length of its first component that has a batch dimension, else None."""
    for component in tf.nest.flatten(batch):
        if isinstance(component, tf.SparseTensor):
            return component.dense_shape[0]
        if isinstance(component, tf.RaggedTensor):
            return component.nrows(tf.int64)
        if _has_rows(component):
            return tf.shape(component, tf.int64)[0]
    return None


def _has_rows(component: Any) -> bool:
    return isinstance(component, tf.Tensor | tf.RaggedTensor) and component.shape.rank != 0
