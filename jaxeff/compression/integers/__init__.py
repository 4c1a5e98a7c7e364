"""Networks of integer codes: `integer`, its grids and its operators."""

from jaxeff.compression.integers._aware import integer_aware
from jaxeff.compression.integers._coded import Coded
from jaxeff.compression.integers._grids import Codes, IntegerError, weight_codes
from jaxeff.compression.integers._operators import q_conv2d
from jaxeff.compression.integers._rule import IntegerFallbackWarning
from jaxeff.compression.integers._transform import Converted, Integer, integer

__all__ = [
    "Coded",
    "Codes",
    "Converted",
    "Integer",
    "IntegerError",
    "IntegerFallbackWarning",
    "integer",
    "integer_aware",
    "q_conv2d",
    "weight_codes",
]
