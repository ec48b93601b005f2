"""Keras callbacks, installed as `tfdist.callbacks`."""

from tfdist.callbacks.batch_size_ramp import BatchSizeRamp as BatchSizeRamp
from tfdist.callbacks.checkpoint_and_resume import CheckpointAndResume as CheckpointAndResume
from tfdist.callbacks.cosine_annealing import CosineAnnealing as CosineAnnealing
from tfdist.callbacks.cyclical_learning_rate import CyclicalLearningRate as CyclicalLearningRate
from tfdist.callbacks.gradient_noise import GradientNoise as GradientNoise
from tfdist.callbacks.learning_rate_scaling import LearningRateScaling as LearningRateScaling
from tfdist.callbacks.learning_rate_warmup import LearningRateWarmup as LearningRateWarmup
from tfdist.callbacks.noise_scale_monitor import NoiseScaleMonitor as NoiseScaleMonitor
from tfdist.callbacks.optimizer_handover import OptimizerHandover as OptimizerHandover
from tfdist.callbacks.optimizer_restart import OptimizerRestart as OptimizerRestart
from tfdist.callbacks.polynomial_decay import PolynomialDecay as PolynomialDecay
from tfdist.callbacks.rollback_on_divergence import RollbackOnDivergence as RollbackOnDivergence
from tfdist.callbacks.step_decay import StepDecay as StepDecay
from tfdist.callbacks.step_time import StepTime as StepTime
from tfdist.callbacks.training_report import TrainingReport as TrainingReport
