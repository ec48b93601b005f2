"""The only package that touches TensorFlow's internals."""

from tfdist._extended.extended import HierarchicalExtended as HierarchicalExtended
from tfdist._extended.host_variable import host_variable as host_variable
from tfdist._extended.noise_scale import NoiseScaleMeter as NoiseScaleMeter
from tfdist._extended.one_process import ranks_of as ranks_of
from tfdist._extended.tensorflow_settings import global_seed as global_seed
from tfdist._extended.tensorflow_settings import keep_order_of_arithmetic as keep_order_of_arithmetic
from tfdist._extended.tensorflow_settings import share_seed as share_seed
