"""Scales as fixed-point multipliers."""

from jaxeff.compression.integers.fixed._multipliers import (
    MOST,
    factor_of,
    multiplied,
    multiplier_of,
    shifted,
)

__all__ = ["MOST", "factor_of", "multiplied", "multiplier_of", "shifted"]
