"""Optimizers for large batches and thin links: one public class a file."""

from tfdist.optimizers.blend import Blend as Blend
from tfdist.optimizers.dgc import DGC as DGC
from tfdist.optimizers.global_clip import GlobalClip as GlobalClip
from tfdist.optimizers.gradient_accumulation import GradientAccumulation as GradientAccumulation
from tfdist.optimizers.lars import LARS as LARS
from tfdist.optimizers.rmsprop_to_sgd import RMSpropToSGD as RMSpropToSGD
