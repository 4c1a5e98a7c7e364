"""Quantizers by the values they take: evenly spaced ones, powers of two, codebooks, floats."""

from jaxeff.compression.quantizers._binary import Binary as Binary
from jaxeff.compression.quantizers._binary import Ternary as Ternary
from jaxeff.compression.quantizers._binary import TrainedTernary as TrainedTernary
from jaxeff.compression.quantizers._codebook import Codebook as Codebook
from jaxeff.compression.quantizers._learned_step import LSQ as LSQ
from jaxeff.compression.quantizers._learned_step import PACT as PACT
from jaxeff.compression.quantizers._learned_step import DoReFa as DoReFa
from jaxeff.compression.quantizers._levels import Floating as Floating
from jaxeff.compression.quantizers._levels import Levels as Levels
from jaxeff.compression.quantizers._levels import PowersOfTwo as PowersOfTwo
from jaxeff.compression.quantizers._levels import mxfp as mxfp
from jaxeff.compression.quantizers._levels import mxint as mxint
from jaxeff.compression.quantizers._levels import nearest_power as nearest_power
from jaxeff.compression.quantizers._levels import nearest_powers as nearest_powers
from jaxeff.compression.quantizers._levels import nf4 as nf4
from jaxeff.compression.quantizers._levels import nvfp4 as nvfp4
from jaxeff.compression.quantizers._levels import top_exponent as top_exponent
from jaxeff.compression.quantizers._uniform import Grouped as Grouped
from jaxeff.compression.quantizers._uniform import Int as Int
from jaxeff.compression.quantizers._uniform import Stochastic as Stochastic
from jaxeff.compression.quantizers._uniform import Uniform as Uniform
from jaxeff.compression.quantizers._uniform import multiples_of as multiples_of
from jaxeff.compression.quantizers._wrappers import Rotated as Rotated
from jaxeff.compression.quantizers._wrappers import Scaled as Scaled
from jaxeff.compression.quantizers._wrappers import Switched as Switched
from jaxeff.compression.quantizers._wrappers import turned as turned
