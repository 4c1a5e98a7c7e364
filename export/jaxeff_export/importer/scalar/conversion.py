"""Conversion between dtypes, and rounding to fewer bits."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import Expr

from ..attributes import attribute
from .comparison import compare
from .narrow_floats import NARROW
from .numerics import round_to
from .rules import ScalarOp, narrow, scalar_rule, widen
from .scope import Scope, bits_of, dtype_of, is_float


@scalar_rule("stablehlo.convert", cost=1)
def _convert(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    x = widen(s, x)
    source, target = dtype_of(x), op.dtype
    if target in NARROW:
        if source != "float32":
            x = s.let(tirx.Cast("float32", x))
        return narrow(s, x, target)
    if source == target:
        return x
    if target == "bool":
        return compare("NE", x, tirx.const(0, source))
    if is_float(source) and not is_float(target):
        return _saturate(s, x, source, target)
    return tirx.Cast(target, x)


def _saturate(s: Scope, x: Expr, source: str, target: str) -> Expr:
    """Float to integer as XLA does: towards zero, out of range to the nearest, NaN to zero."""
    bits = bits_of(target)
    if target.startswith("uint"):
        low, high = 0.0, 2.0**bits
    else:
        low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1)
    below = s.let(x <= tirx.const(low, source))
    above = s.let(x >= tirx.const(high, source))
    nan = s.let(tirx.isnan(x))
    outside = tirx.Or(tirx.Or(below, above), nan)
    inside = s.let(tirx.Select(outside, tirx.const(0, source), x))
    value = s.let(tirx.Cast(target, inside))
    value = tirx.Select(below, tirx.min_value(target), value)
    value = tirx.Select(above, tirx.max_value(target), value)
    return tirx.Select(nan, tirx.const(0, target), value)


@scalar_rule("stablehlo.reduce_precision", cost=8)
def _reduce_precision(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    exponent = attribute(op.op, "exponent_bits")
    mantissa = attribute(op.op, "mantissa_bits")
    return round_to(s, x, exponent, mantissa)
