"""Distributed training for Keras: one line more in a script that works."""

from tfdist import callbacks as callbacks
from tfdist import data as data
from tfdist import mixed_precision as mixed_precision
from tfdist import optimizers as optimizers
from tfdist import pipeline as pipeline
from tfdist.agreement import RankMismatchError as RankMismatchError
from tfdist.strategy import HierarchicalStrategy as HierarchicalStrategy
from tfdist.topology import Topology as Topology

__version__ = "0.1.0"
