"""Networks of integer codes: `integer`, its grids and its operators."""

from jaxeff.compression.integers._coded import Coded as Coded
from jaxeff.compression.integers._operators import Codes as Codes
from jaxeff.compression.integers._operators import IntegerError as IntegerError
from jaxeff.compression.integers._operators import ProductSpec as ProductSpec
from jaxeff.compression.integers._operators import q_conv2d as q_conv2d
from jaxeff.compression.integers._operators import weight_codes as weight_codes
from jaxeff.compression.integers._rule import IntegerFallbackWarning as IntegerFallbackWarning
from jaxeff.compression.integers._transform import Converted as Converted
from jaxeff.compression.integers._transform import Integer as Integer
from jaxeff.compression.integers._transform import integer as integer
from jaxeff.compression.integers._transform import integer_aware as integer_aware
