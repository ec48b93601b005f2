"""Models that are cut into stages, through which minibatches run without draining."""

from tfdist.pipeline.pipeline_model import PipelineModel as PipelineModel
