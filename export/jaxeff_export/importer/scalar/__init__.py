"""Elementwise operations on scalars: the same rules serve tensors and the bodies of reductions."""

from jaxeff_export.importer.scalar import _arithmetic as arithmetic
from jaxeff_export.importer.scalar import _bits as bits
from jaxeff_export.importer.scalar import _comparison as comparison
from jaxeff_export.importer.scalar import _conversion as conversion
from jaxeff_export.importer.scalar import _functions as functions
from jaxeff_export.importer.scalar._comparison import compare, negation
from jaxeff_export.importer.scalar._narrow_floats import (
    HELD_AS_FLOAT32,
    NARROW,
    load,
    scalar_dtype,
    store,
)
from jaxeff_export.importer.scalar._rules import SCALAR_RULES, ScalarOp, apply_scalar, narrow
from jaxeff_export.importer.scalar._scope import Scope, bits_of, dtype_of, is_float, literal

__all__ = [
    "HELD_AS_FLOAT32",
    "NARROW",
    "SCALAR_RULES",
    "ScalarOp",
    "Scope",
    "apply_scalar",
    "arithmetic",
    "bits",
    "bits_of",
    "compare",
    "comparison",
    "conversion",
    "dtype_of",
    "functions",
    "is_float",
    "literal",
    "load",
    "narrow",
    "negation",
    "scalar_dtype",
    "store",
]
