"""Integer kernels: dense layers and convolutions of codes of up to 8 bits."""

from jaxeff_export.operators.integer._contraction import Sharing as Sharing
from jaxeff_export.operators.integer._contraction import contraction as contraction
from jaxeff_export.operators.integer._contraction import vectors_of as vectors_of
from jaxeff_export.operators.integer._dots import dot_of as dot_of
from jaxeff_export.operators.integer._dual import DualFunction as DualFunction
from jaxeff_export.operators.integer._dual import dual_functions as dual_functions
from jaxeff_export.operators.integer._dual import shortcuts_in_bands as shortcuts_in_bands
from jaxeff_export.operators.integer._layers import DotTile as DotTile
from jaxeff_export.operators.integer._layers import Geometry as Geometry
from jaxeff_export.operators.integer._lowering import IntegerKernelError as IntegerKernelError
from jaxeff_export.operators.integer._lowering import integer_operators as integer_operators
from jaxeff_export.operators.integer._planes import planes_of as planes_of
