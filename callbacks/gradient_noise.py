"""Noise on the gradient that falls as training goes on."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist import _keras


class GradientNoise(keras.callbacks.Callback):
    """Adds normal noise to the sum of the gradients, the same on every replica.

    ```
    g = g + N(0, sigma_t^2)        sigma_t^2 = eta / (1 + t)^gamma        t: the optimizer's updates
    ```

    It is added after clipping, once for each update, so that several replicas, or batches whose gradients are added up, make the
    same step as one device. It goes by the optimizer's count: a run that is resumed goes on.

    Args:
        eta: The variance of the first update, 0 or more. Defaults to 0.01.
        gamma: How fast it falls, 0 or more. Defaults to 0.55.
        seed: A whole number; the same on all ranks. Defaults to 0.

    Raises:
        ValueError: If a number is outside its range; in `fit`, if two of these are given, or the optimizer is a legacy one.

    Example:
        >>> noise = GradientNoise(eta=1.0)
        >>> [round(noise.variance(t), 3) for t in (0, 1, 99)]
        [1.0, 0.683, 0.079]
        >>> history = model.fit(x, y, verbose=0, callbacks=[noise])

    Reference:
        Neelakantan et al. 2015, arXiv 1511.06807, section 3, equation 1. Gradients of embeddings are made dense, since noise goes
        to every row.

    Limits:
        After a `fit` that was interrupted by an error, the noise stays until a `fit` with this callback has ended, or there is a
        new optimizer.
    """

    steers = True

    def __init__(self, eta: float = 0.01, gamma: float = 0.55, seed: int = 0) -> None:
        super().__init__()
        _keras.check_number("eta", eta, lambda e: e >= 0, "a variance, 0 or more")
        _keras.check_number("gamma", gamma, lambda g: g >= 0, "a power, 0 or more")
        _keras.check_number("seed", seed, lambda s: s == int(s), "a whole number")
        self.eta, self.gamma, self.seed = eta, gamma, int(seed)

    def variance(self, step: Any) -> Any:
        """sigma_t^2 of an update, from 0."""
        return self.eta / (1.0 + step) ** self.gamma

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        if _keras.owner_of_hook(self.model.optimizer) is self.params:
            raise ValueError("Give `fit` one GradientNoise. Received: two of them in `callbacks`.")
        _keras.unhook_gradients(self.model.optimizer)  # of a fit that was interrupted
        _keras.hook_gradients(self.model.optimizer, self._noise, self.params)
        _keras.trace_again(self.model)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        _keras.unhook_gradients(self.model.optimizer)
        self.model.train_function = None

    def get_config(self) -> dict[str, Any]:
        """The arguments, as plain values; ranks compare them."""
        return {"eta": self.eta, "gamma": self.gamma, "seed": self.seed}

    def get_state(self) -> dict[str, Any]:
        """Nothing: the optimizer counts."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing."""

    def _noise(self, index: int, gradient: Any, step: Any) -> Any:
        key = tf.stack([tf.cast(self.seed * 2**20 + index, tf.int64), tf.cast(step, tf.int64)])
        sigma = tf.sqrt(self.variance(tf.cast(step, gradient.dtype)))
        return sigma * tf.random.stateless_normal(gradient.shape, key, dtype=gradient.dtype)
