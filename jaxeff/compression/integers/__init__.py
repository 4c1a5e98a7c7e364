"""Networks of integer codes: `integer`, its grids and its operators."""

from jaxeff.compression.integers._coded import Coded
from jaxeff.compression.integers._operators import (
    Codes,
    IntegerError,
    ProductSpec,
    q_conv2d,
    weight_codes,
)
from jaxeff.compression.integers._rule import IntegerFallbackWarning
from jaxeff.compression.integers._transform import Converted, Integer, integer, integer_aware

__all__ = [
    "Coded",
    "Codes",
    "Converted",
    "Integer",
    "IntegerError",
    "IntegerFallbackWarning",
    "ProductSpec",
    "integer",
    "integer_aware",
    "q_conv2d",
    "weight_codes",
]
