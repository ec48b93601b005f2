"""What tensorflow-addons' weight decay asks of an optimizer; there is none for Keras 3."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdist._keras.calls import KERAS_3


class AddonsHooks:
    """A part of an optimizer: lets `tfa.optimizers.extend_with_decoupled_weight_decay` extend it.

    The extension was written for Keras's legacy optimizers, and uses methods of theirs that later ones do not have.
    """

    @property
    def decays_apart(self) -> bool:
        """Whether this optimizer is extended, so that `weight_decay` is the extension's."""
        return hasattr(self, "_do_use_weight_decay")

    def _set_hyper(self, name: str, value: Any) -> None:
        setattr(self, f"_hyper_{name}", value)

    def _get_hyper(self, name: str, dtype: tf.DType) -> Any:
        value = getattr(self, f"_hyper_{name}")
        if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
            return value
        return tf.cast(value() if callable(value) else value, dtype)

    if not KERAS_3:

        def _serialize_hyperparameter(self: Any, hyperparameter: Any) -> Any:
            value = getattr(self, f"_hyper_{hyperparameter}") if isinstance(hyperparameter, str) else hyperparameter
            return super()._serialize_hyperparameter(value)  # type: ignore[misc]

        def minimize(self: Any, loss: Any, var_list: Any, grad_loss: Any = None, name: Any = None, tape: Any = None) -> Any:
            if grad_loss is not None:
                raise TypeError("Keras 2.15 has no `grad_loss`; multiply the loss by it instead. Received: grad_loss.")
            return super().minimize(loss, var_list, tape=tape)  # type: ignore[misc]

        def _apply_weight_decay(self: Any, variables: Any) -> None:
            super()._apply_weight_decay(variables)  # type: ignore[misc]
            if self.decays_apart:
                # The extension's own way is to decay each device's copy, which its list of variables does not know.
                decayed = [variable for variable in variables if self._do_use_weight_decay(variable)]
                tf.distribute.get_replica_context().merge_call(self._decay_apart, args=(decayed,))

        def _decay_apart(self: Any, distribution: Any, variables: Any) -> None:
            def decay(variable: tf.Variable) -> None:
                variable.assign_sub(self._decayed_wd(variable.dtype) * variable)

            for variable in variables:
                distribution.extended.update(variable, decay, group=False)
