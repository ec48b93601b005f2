"""DGC: send a thousandth of the gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras
from tfdist._extended import ranks_of
from tfdist.optimizers.selection import join
from tfdist.optimizers.selection import remainder
from tfdist.optimizers.selection import select
from tfdist.optimizers.selection import split
from tfdist.optimizers.selection import to_wire
from tfdist.optimizers.sparsity import check_ramp
from tfdist.optimizers.sparsity import sends_dense
from tfdist.optimizers.state_of_rank import StateOfRank

_WIRE = {"float32": tf.float32, "float16": tf.float16}


@keras.saving.register_keras_serializable(package="tfdist")
class DGC(StateOfRank, _keras.LocalOptimizer):
    """Momentum SGD that sends what matters of the gradient now, and the rest later: deep gradient compression.

    ```
    on each rank, g is the sum over its devices
    g = g * min(1, c / (sqrt(N) * |g|))                          local clipping
    u = m * u + g;   v = v + u                                   momentum correction; Nesterov: v = v + g + m * u
    S = the elements with the largest |v|, 1 - s of them         by the threshold of a sample
    send v[S];   v[S] = 0;   u[S] = 0                            what is sent is no longer kept; momentum factor masking
    w = w - gamma * sum over ranks of v[S]

    m: momentum    s: sparsity    c: clipnorm    gamma: learning_rate    N: ranks
    ```

    In every step, what is sent and what is kept is what was kept before and the new gradient: nothing is lost, some of it is late.
    Variables with one dimension, or few elements, are summed whole, with momentum after the sum. Where 1 - s is 1/N or more, values
    with their indices would be more than the gradient, and `v` is summed whole. Use it where a link is thin; with one process
    nothing is sent, but all else is done.

    Args:
        learning_rate: gamma; a float, or a `LearningRateSchedule`.
        momentum: m, in [0, 1). Defaults to 0.9.
        nesterov: Whether the step looks ahead. Defaults to `False`.
        sparsity: s, in [0, 1): the part that is not sent. Defaults to 0.999.
        rampup: The sparsities before that one, rising. Defaults to `(0.75, 0.9375, 0.984375, 0.996)`.
        rampup_steps: The steps of each of them; the paper takes an epoch. Defaults to 500.
        clipnorm: c, for each variable; it is what you would give without DGC. Defaults to `None`.
        global_clipnorm: c, for all variables together. Defaults to `None`.
        dense_below: Variables with fewer elements are summed whole. Defaults to 16384.
        values: What values are sent as, "float32" or "float16"; what is rounded off is kept. Defaults to `"float32"`.
        momentum_correction: `False` is for comparison: `v` sums up gradients, and momentum comes after the sum. Defaults to `True`.
        momentum_masking: `False` is for comparison: `u` is never set to 0. Defaults to `True`.
        name: The optimizer's name. Defaults to `"DGC"`.
        **kwargs: What every Keras optimizer takes: `weight_decay`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`; with Keras
            3 also `loss_scale_factor` and `gradient_accumulation_steps`. Decay is Keras's: of all weights, on each rank alike.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> w = tf.Variable(tf.zeros([2, 2]))
        >>> dgc = DGC(1.0, momentum=0.0, sparsity=0.75, rampup=(), dense_below=0)
        >>> for _ in range(2):
        ...     _ = dgc.apply_gradients([(tf.constant([[1.0, 0.75], [0.5, 0.0]]), w)])
        >>> w.numpy().tolist()
        [[-1.0, -1.5], [0.0, 0.0]]

    Reference:
        Lin et al. 2017, arXiv 1712.01887, sections 3.1 to 3.3 and algorithm 1. As in its authors' code, the threshold is that of a
        sample, and where it lets through more than 1.3 times what was asked for, the largest of these are sent. We do not look for
        another threshold where it lets through less: the rest follows. `gamma` is multiplied after the sum, so that a change of it
        is felt at once; with momentum, Keras's SGD feels it slowly.
    """

    def __init__(
        self,
        learning_rate: Any = 0.1,
        momentum: float = 0.9,
        nesterov: bool = False,
        sparsity: float = 0.999,
        rampup: Sequence[float] = (0.75, 0.9375, 0.984375, 0.996),
        rampup_steps: int = 500,
        clipnorm: float | None = None,
        global_clipnorm: float | None = None,
        dense_below: int = 16384,
        values: str = "float32",
        momentum_correction: bool = True,
        momentum_masking: bool = True,
        name: str = "DGC",
        **kwargs: Any,
    ) -> None:
        _keras.check_number("momentum", momentum, lambda m: 0 <= m < 1, "a number in [0, 1)")
        _keras.check_number("dense_below", dense_below, lambda n: n >= 0, "a number of elements, 0 or more")
        check_ramp(sparsity, rampup, rampup_steps)
        _check_clipping(clipnorm, global_clipnorm, kwargs.pop("clipvalue", None))
        if values not in _WIRE:
            raise ValueError(f"`values` must be one of {list(_WIRE)}. Received: values={values!r}.")
        super().__init__(learning_rate, name, **kwargs)
        self.momentum, self.nesterov = momentum, nesterov
        self.sparsity, self.rampup, self.rampup_steps = sparsity, tuple(rampup), rampup_steps
        self.dense_below, self.values = dense_below, values
        self.momentum_correction, self.momentum_masking = momentum_correction, momentum_masking
        self._norms = (clipnorm, global_clipnorm)

    def create_slots(self, variables: Sequence[Any]) -> None:
        self._is_sparse = [len(v.shape) > 1 and v.shape.num_elements() >= self.dense_below for v in map(_keras.unwrap, variables)]
        self.add_slots(variables, "velocity", flat=True)
        sparse = [v for v, is_sparse in zip(variables, self._is_sparse, strict=True) if is_sparse]
        self.add_slots(variables, "residual", flat=True, only=self._is_sparse)
        self.mark_as_own([self.slot("residual", v) for v in sparse])
        if self.momentum_correction:
            self.mark_as_own([self.slot("velocity", v) for v in sparse])

    def step(self, distribution: Any, gradients: list[Any], variables: list[Any], learning_rate: Any) -> None:
        ranks = ranks_of(distribution)
        local = self._clip(ranks.sum_on_devices(gradients), ranks.size)
        pairs = list(zip(local, variables, strict=True))
        sparse = [(g, v) for g, v in pairs if self._is_sparse[self.index_of(v)]]
        dense = [(g, v) for g, v in pairs if not self._is_sparse[self.index_of(v)]]
        rate = tf.cast(learning_rate, tf.float32)
        for gradient, variable in sparse:
            self._remember(gradient, variable)
        for total, (_, variable) in zip(ranks.sum_over_ranks([g for g, _ in dense]), dense, strict=True):
            self._move(distribution, variable, total, rate, with_momentum=True)
        if sparse:
            self._exchange(distribution, ranks, [v for _, v in sparse], rate)

    def get_config(self) -> dict[str, Any]:
        clipnorm, global_clipnorm = self._norms
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "sparsity": self.sparsity,
            "rampup": list(self.rampup),
            "rampup_steps": self.rampup_steps,
            "clipnorm": clipnorm,
            "global_clipnorm": global_clipnorm,
            "dense_below": self.dense_below,
            "values": self.values,
            "momentum_correction": self.momentum_correction,
            "momentum_masking": self.momentum_masking,
        }

    def _clip(self, local: list[Any], num_ranks: int) -> list[Any]:
        # The sum over N ranks of gradients that differ at random is sqrt(N) times as long as one of them.
        clipnorm, global_clipnorm = (None if norm is None else norm / num_ranks**0.5 for norm in self._norms)
        if clipnorm is not None:
            return [tf.clip_by_norm(gradient, clipnorm) for gradient in local]
        return tf.clip_by_global_norm(local, global_clipnorm)[0] if global_clipnorm is not None else local

    def _remember(self, gradient: Any, variable: Any) -> None:
        """Adds what is new to what is kept, in one pass over the data."""
        residual = _keras.first_copy(self.slot("residual", variable))
        if not self.momentum_correction:
            residual.assign_add(tf.reshape(gradient, [-1]))
            return
        velocity = _keras.first_copy(self.slot("velocity", variable))
        _momentum_step(residual, velocity, gradient, -1.0, self.momentum, self.nesterov)

    def _exchange(self, distribution: Any, ranks: Any, variables: list[Any], rate: Any) -> None:
        stages = [*self.rampup, self.sparsity]
        whole = [sends_dense(sparsity, ranks.size) for sparsity in stages]
        stage = tf.minimum(tf.cast(self.iterations_now(), tf.int32) // self.rampup_steps, len(stages) - 1)

        def send_whole() -> Any:
            self._send_whole(distribution, ranks, variables, rate)
            return tf.zeros([])

        def send_some() -> Any:
            self._send_some(distribution, ranks, variables, rate, 1.0 - tf.gather(stages, stage))
            return tf.zeros([])

        if len(set(whole)) == 1:
            (send_whole if whole[0] else send_some)()
        else:
            tf.cond(tf.gather(whole, stage), send_whole, send_some)

    def _send_whole(self, distribution: Any, ranks: Any, variables: list[Any], rate: Any) -> None:
        residuals = [_keras.first_copy(self.slot("residual", variable)) for variable in variables]
        for total, residual, variable in zip(
            ranks.sum_over_ranks([residual.read_value() for residual in residuals]), residuals, variables, strict=True
        ):
            residual.assign(tf.zeros_like(residual))
            self._move(distribution, variable, total, rate, with_momentum=not self.momentum_correction)

    def _send_some(self, distribution: Any, ranks: Any, variables: list[Any], rate: Any, density: Any) -> None:
        offset = tf.cast(self.iterations_now(), tf.int32)
        chosen = [self._choose(variable, density, offset) for variable in variables]
        lengths = [_keras.unwrap(variable).shape.num_elements() for variable in variables]
        received = split(ranks.gather_over_ranks(join(chosen, lengths)), _WIRE[self.values], lengths)
        for (indices, values), variable in zip(received, variables, strict=True):
            if self.momentum_correction:
                self._move_some(distribution, variable, indices, rate * values)
            else:
                shape = [_keras.unwrap(variable).shape.num_elements()]
                total = tf.scatter_nd(indices[:, None], values, shape)
                self._move(distribution, variable, total, rate, with_momentum=True)

    def _choose(self, variable: Any, density: Any, offset: Any) -> tuple[Any, Any]:
        """Takes what is sent of a variable out of what is kept."""
        residual = _keras.first_copy(self.slot("residual", variable))
        indices = select(residual.read_value(), density, self.sparsity, offset)
        kept = tf.gather(residual, indices)
        values = to_wire(kept, _WIRE[self.values])
        residual.scatter_update(tf.IndexedSlices(remainder(kept, values), indices))
        if self.momentum_correction and self.momentum_masking:
            velocity = _keras.first_copy(self.slot("velocity", variable))
            velocity.scatter_update(tf.IndexedSlices(tf.zeros_like(kept), indices))
        return indices, values

    def _move(self, distribution: Any, variable: Any, total: Any, rate: Any, *, with_momentum: bool) -> None:
        velocity = self.slot("velocity", variable)

        def move(weights: Any, velocity: Any, total: Any) -> None:
            total = tf.reshape(total, weights.shape)
            if with_momentum:
                accumulated = tf.reshape(velocity, weights.shape) * self.momentum + total
                velocity.assign(tf.reshape(accumulated, [-1]))
                total = total + self.momentum * accumulated if self.nesterov else accumulated
            weights.assign_sub(tf.cast(rate * total, weights.dtype))

        distribution.extended.update(_keras.unwrap(variable), move, args=(velocity, total), group=False)

    def _move_some(self, distribution: Any, variable: Any, indices: Any, change: Any) -> None:
        def move(weights: Any, indices: Any, change: Any) -> None:
            places = tf.transpose(tf.unravel_index(indices, weights.shape))
            weights.scatter_nd_sub(places, tf.cast(change, weights.dtype))

        distribution.extended.update(_keras.unwrap(variable), move, args=(indices, change), group=False)


def _momentum_step(variable: Any, accumulated: Any, gradient: Any, rate: float, momentum: float, nesterov: bool) -> None:
    """A = m * a + g;  x = x - rate * a;  with Nesterov x - rate * (g + m * a)."""
    tf.raw_ops.ResourceApplyMomentum(
        var=variable.handle,
        accum=accumulated.handle,
        lr=tf.constant(rate, variable.dtype),
        grad=tf.reshape(tf.cast(gradient, variable.dtype), [-1]),
        momentum=tf.constant(momentum, variable.dtype),
        use_nesterov=nesterov,
    )


def _check_clipping(clipnorm: float | None, global_clipnorm: float | None, clipvalue: float | None) -> None:
    if clipvalue is not None:
        raise ValueError(f"DGC clips by norm: use `clipnorm` or `global_clipnorm`. Received: clipvalue={clipvalue}.")
    if clipnorm is not None and global_clipnorm is not None:
        raise ValueError(
            f"Give `clipnorm` or `global_clipnorm`, not both. Received: clipnorm={clipnorm}, global_clipnorm={global_clipnorm}."
        )
    for name, norm in (("clipnorm", clipnorm), ("global_clipnorm", global_clipnorm)):
        if norm is not None:
            _keras.check_number(name, norm, lambda n: n > 0, "a number above 0")
