"""What the user holds."""

from __future__ import annotations

import importlib.metadata
import random
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import _extended
from tfdist import _keras
from tfdist.agreement import Agreement
from tfdist.agreement import RankMismatchError
from tfdist.collectives.bucket_sum import BucketSum
from tfdist.collectives.buckets import DEFAULT_FUSION_BYTES
from tfdist.collectives.executor import Executor
from tfdist.collectives.sums import ALGORITHMS
from tfdist.collectives.sums import create_compressed_sum
from tfdist.collectives.sums import create_sum
from tfdist.communicators import create_communicator
from tfdist.compression import COMPRESSORS
from tfdist.data import static_batch_size
from tfdist.data import unseeded_shuffle
from tfdist.devices import find_devices
from tfdist.devices import share_devices
from tfdist.mixed_precision import LossScaleOptimizer
from tfdist.topology import Topology


class HierarchicalStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """Trains a Keras model on all devices of all processes of a job, each with a part of every batch.

    ```
    gradient of the batch = sum over ranks ( sum over the rank's devices ( gradient of the device's rows ) )
    ```

    Weights after a step are those that one process would have after the same global batch. The batch size given to a dataset, or
    to `fit`, is the global one; it is divided among the replicas, as evenly as it can be, and each row has the same weight.

    Args:
        devices: This process's devices, such as `["GPU:0", "GPU:1"]`. Defaults to its share of the host's GPUs, or, without
            GPUs, all logical CPUs.
        communicator: "local", "horovod", "mpi", or "auto" to go by what started the process. Defaults to `"auto"`.
        fusion_bytes: Gradients are sent together up to this size, in bytes, or an eighth of all; 0 sends each alone. Defaults to
            16 MiB.
        compression: How gradients are made smaller between hosts: "fp16", "bf16", "int8", or not at all. Defaults to `None`.
        algorithm: How ranks sum: "engine" is the engine's own; over MPI also "ring", "halving_doubling", "binary_blocks",
            "hierarchical", "hierarchical_master", "hybrid"; "auto" is the fastest by prediction. Defaults to `"auto"`.
        pipelined: Whether a process is one replica, whose devices are the stages of a `PipelineModel`. Defaults to `False`.

    Raises:
        ValueError: If an argument is not one of those known, a device does not exist or is given twice.
        RuntimeError: If the process was started as one of several and no engine reaches the others.

    Example:
        >>> strategy = HierarchicalStrategy()
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> history = model.fit(np.ones((8, 1)), np.ones((8, 1)), batch_size=4, verbose=0)
    """

    def __init__(
        self,
        devices: list[str] | None = None,
        *,
        communicator: str = "auto",
        fusion_bytes: int = DEFAULT_FUSION_BYTES,
        compression: str | None = None,
        algorithm: str = "auto",
        pipelined: bool = False,
    ) -> None:
        _check_known("compression", compression or "none", tuple(COMPRESSORS))
        _check_known("algorithm", algorithm, ALGORITHMS)
        if fusion_bytes < 0:
            raise ValueError(f"`fusion_bytes` must be 0 or more, since it is a size. Received: fusion_bytes={fusion_bytes}.")
        self._settings = {"fusion_bytes": fusion_bytes, "compression": compression or "none", "algorithm": algorithm}
        self._communicator = create_communicator(communicator)
        self._agreement = Agreement(self._communicator)
        hosts = self._communicator.gather_host_names()
        local = [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]
        self._devices = share_devices(local.index(self.rank), len(local)) if devices is None else find_devices(devices)
        self._pipelined = pipelined
        replicas = self._devices[:1] if pipelined else self._devices
        self._topology = Topology(hosts, tuple(self._agreement.meet("count devices", len(replicas))))
        _check_same_devices(self._topology)
        self._agreement.compare("HierarchicalStrategy", {"strategy": self._settings})
        executor = Executor(self._communicator, self._agreement, fusion_bytes, *self._sums())
        self._final_results: dict[int, Any] = {}
        self._reduction_checked = False
        extended = _extended.HierarchicalExtended(self, replicas, executor, self.rank, self.size)
        # The parent class is there for Keras, which by it averages metrics over processes; its own constructor would start
        # TensorFlow's cluster.
        tf.distribute.Strategy.__init__(self, extended)
        if self._topology.num_replicas > 1:
            _extended.keep_order_of_arithmetic()
        if self.size > 1:
            _extended.share_seed(self._agreement.meet("share a seed", random.getrandbits(31))[0])
        _keras.save_atomically(lambda model: isinstance(getattr(model, "distribute_strategy", None), HierarchicalStrategy))
        _keras.correct_under(lambda strategy: isinstance(strategy, HierarchicalStrategy))

    @property
    def rank(self) -> int:
        """This process's rank, from 0."""
        return self._communicator.rank

    @property
    def size(self) -> int:
        """The number of processes."""
        return self._communicator.size

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0, which prints."""
        return self.rank == 0

    @property
    def verbose(self) -> int:
        """What to give to `fit(verbose=)`: 1 on rank 0, else 0."""
        return int(self.is_chief)

    @property
    def devices(self) -> list[str]:
        """This process's devices."""
        return list(self._devices)

    @property
    def pipelined(self) -> bool:
        """Whether this process's devices are the stages of one replica."""
        return self._pipelined

    @property
    def topology(self) -> Topology:
        """Hosts x processes x devices."""
        return self._topology

    def __repr__(self) -> str:
        settings = {
            "algorithm": self._settings["algorithm"],
            "communicator": self._communicator.name,
            "compression": self._settings["compression"],
            "devices": self._devices,
            "fusion_bytes": self._settings["fusion_bytes"],
            "num_replicas_in_sync": self._topology.num_replicas,
            "pipelined": self._pipelined,
            "rank": self.rank,
            "size": self.size,
            "topology": str(self._topology),
        }
        return f"{type(self).__name__}(\n" + "".join(f"    {name}={value!r},\n" for name, value in settings.items()) + ")"

    def broadcast(self, model: Any) -> None:
        """Gives every rank the weights, and the optimizer's state, that rank 0 has now.

        Call it on all ranks after rank 0 alone has loaded a checkpoint. (New models are equal on all ranks without it.)

        Args:
            model: A Keras model that was built, in this strategy's scope, on every rank.
        """
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and not getattr(optimizer, "built", True):
            with self.scope():
                optimizer.build(model.trainable_variables)
        self.extended.broadcast_variables(_keras.all_variables(model))

    @tf.autograph.experimental.do_not_convert
    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Runs `fn` on every replica; see `tf.distribute.Strategy.run`."""
        outputs = super().run(fn, args, kwargs, options)
        if self._topology.num_replicas == 1:
            return outputs
        metrics = _keras.global_metrics(_keras.current_call(), outputs)
        if metrics:
            outputs = {**outputs, **metrics}
            # Keras will now ask for the mean, or the sum, over the ranks of what is the same on all.
            self._final_results = {id(value): value for value in metrics.values()}
        return outputs

    @tf.autograph.experimental.do_not_convert
    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """Reduces `value` over all replicas; see `tf.distribute.Strategy.reduce`."""
        if isinstance(value, dict | list | tuple):
            # Keras asks for a batch in this way, for its shapes only, before it builds a model.
            return tf.nest.map_structure(lambda part: self.experimental_local_results(part)[0], value)
        if id(value) in self._final_results:
            return value
        if axis is not None and all(tf.convert_to_tensor(part).shape.rank == 0 for part in self.experimental_local_results(value)):
            axis = None
        return super().reduce(reduce_op, value, axis)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Divides each batch of a dataset among the replicas; see `tf.distribute.Strategy.experimental_distribute_dataset`."""
        self._check(dataset)
        return super().experimental_distribute_dataset(dataset, options)

    def distribute_datasets_from_function(self, dataset_fn: Any, options: Any = None) -> Any:
        """Feeds the replicas of each process from its own dataset; see `tf.distribute.Strategy`."""
        self._check(None)
        return super().distribute_datasets_from_function(dataset_fn, options)

    def _check(self, dataset: Any) -> None:
        """Refuses what would go wrong without a word, and starts all ranks with the same weights."""
        call = _keras.current_call()
        batch_size = None if dataset is None else static_batch_size(dataset)
        self._check_call(call, batch_size)
        if self.size == 1:
            return
        self._check_shuffle(dataset)
        settings = {
            "global batch size": batch_size,
            "seed": _extended.global_seed(),
            "strategy": {**self._settings, "communicator": self._communicator.name},
            "versions": _versions(),
        }
        if call is not None:
            settings.update(_keras.call_settings(call))
        self._agreement.compare(call.method if call else "training", settings)
        self._check_reduction()
        self.extended.broadcast_new_variables()

    def _check_call(self, call: _keras.Call | None, batch_size: int | None) -> None:
        if call is None:
            return
        if _keras.is_horovod_optimizer(getattr(call.model, "optimizer", None)):
            raise ValueError(
                "Give `compile` the plain optimizer: the strategy sums the gradients, and Horovod's DistributedOptimizer would sum "
                "them once more (Keras 2) or not at all (Keras 3). Received: an optimizer made by Horovod's DistributedOptimizer."
            )
        optimizer = getattr(call.model, "optimizer", None)
        _keras.make_replica_safe(optimizer)
        _keras.adopt(optimizer, self)
        if _keras.is_keras_loss_scale(optimizer):
            LossScaleOptimizer.take_over(optimizer)
        if self.size > 1 and _keras.is_jit_compiled(call.model):
            raise ValueError(
                f"Use compile(jit_compile=False): the engine {self._communicator.name!r} sends from the host, which a step "
                "compiled by XLA cannot call. Received: jit_compile=True."
            )
        if call.method == "fit" and batch_size is not None and batch_size < self._topology.num_replicas:
            raise ValueError(
                "The batch size is that of all replicas together, so it must be at least their number. Received: "
                f"batch size={batch_size}, replicas={self._topology.num_replicas} ({self._topology})."
            )

    def _check_shuffle(self, dataset: Any) -> None:
        if dataset is not None and unseeded_shuffle(dataset):
            raise ValueError(
                "Each rank takes its rows of each batch, so all must shuffle alike; this one was shuffled without a seed before "
                "the strategy was made. Make the strategy first, or use shuffle(..., seed=1). Received: a shuffle without a seed."
            )

    def _check_reduction(self) -> None:
        """Sums a known gradient by the path that an optimizer uses."""
        if self._reduction_checked:
            return
        self._reduction_checked = True

        def known() -> Any:
            context = tf.distribute.get_replica_context()
            gradient = tf.cast(context.replica_id_in_sync_group + 1, tf.float32) * tf.range(1.0, 8.0)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, gradient)

        replicas = self._topology.num_replicas
        expected = np.arange(1, 8) * replicas * (replicas + 1) / 2
        for received in self.experimental_local_results(tf.function(lambda: self.run(known))()):
            if not np.array_equal(received.numpy(), expected):
                raise RankMismatchError(
                    f"A known gradient must come out of the sum over {replicas} replicas as {expected}; the engine "
                    f"{self._communicator.name!r} does not add rightly. Received: {received.numpy()} on rank {self.rank}."
                )

    def _sums(self) -> tuple[BucketSum, BucketSum]:
        algorithm, compression = str(self._settings["algorithm"]), str(self._settings["compression"])
        on_gpus = any("GPU" in device for device in self._devices)
        exact = create_sum(self._communicator, self._topology, algorithm, on_gpus)
        if compression == "none" or self._topology.num_hosts == 1:
            return exact, exact
        return exact, create_compressed_sum(self._communicator, self._topology, compression)


def _check_known(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"`{name}` must be one of {list(known)}. Received: {name}={value!r}.")


def _check_same_devices(topology: Topology) -> None:
    if len(set(topology.devices)) > 1:
        raise ValueError(
            "Every rank must hold the same number of devices, so that each has the same part of a batch. Received: "
            + ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(topology.devices))
            + "."
        )


def _versions() -> dict[str, str]:
    try:
        ours = importlib.metadata.version("tfdist")
    except importlib.metadata.PackageNotFoundError:
        ours = "not installed"
    return {"tensorflow": tf.__version__, "keras": _keras.VERSION, "tfdist": ours}
