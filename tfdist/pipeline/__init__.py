"""Models that are cut into stages, through which minibatches run without draining."""
