"""Networks of integer codes: `integer`, its grids and its operators."""

from jaxeff.compression.integers.aware import integer_aware
from jaxeff.compression.integers.grids import IntegerError
from jaxeff.compression.integers.transform import (
    Converted,
    Integer,
    IntegerFallbackWarning,
    integer,
)

__all__ = [
    "Converted",
    "Integer",
    "IntegerError",
    "IntegerFallbackWarning",
    "integer",
    "integer_aware",
]
