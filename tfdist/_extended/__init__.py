"""The only package that touches TensorFlow's internals."""

from tfdist._extended.extended import global_seed as global_seed
from tfdist._extended.extended import HierarchicalExtended as HierarchicalExtended
from tfdist._extended.extended import share_seed as share_seed
