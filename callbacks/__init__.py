"""Keras callbacks, installed as `tfdist.callbacks`."""

from tfdist.callbacks.step_time import StepTime as StepTime
