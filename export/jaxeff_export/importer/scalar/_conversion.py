"""Conversion between dtypes, and rounding to fewer bits."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.reading import attribute
from jaxeff_export.importer.scalar._comparison import compare
from jaxeff_export.importer.scalar._narrow_floats import NARROW
from jaxeff_export.importer.scalar._numerics import round_to
from jaxeff_export.importer.scalar._rules import ScalarOp, narrow, scalar_rule, unsigned, widen
from jaxeff_export.importer.scalar._scope import Scope, bits_of, dtype_of, is_float, literal


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
    if target.startswith(("int", "uint")) and source.startswith(("int", "uint")):
        return _wrap(x, source, target)
    return tirx.Cast(target, x)


def _wrap(x: Expr, source: str, target: str) -> Expr:
    """Converts between integers modulo the width, without casts that TVM refuses as too large."""
    bits, width = bits_of(target), bits_of(source)
    if isinstance(x, tirx.IntImm):
        value = int(x.value) % (1 << bits)
        is_negative = target.startswith("int") and value >> (bits - 1)
        return literal(value - (1 << bits) if is_negative else value, target)
    if bits > width:  # the sign is extended before it becomes a bit like others
        kind = source.removesuffix(str(width)) + str(bits)
        x = tirx.Cast(kind, x)
        return x if kind == target else _wrap(x, kind, target)
    x = unsigned(x, width)
    if bits < width:
        x = tirx.Cast(f"uint{bits}", x & tirx.const((1 << bits) - 1, f"uint{width}"))
    return x if target.startswith("uint") else tirx.reinterpret(target, x)


def _saturate(s: Scope, x: Expr, source: str, target: str) -> Expr:
    """Converts floats to integers as XLA: towards zero, saturating at the range, NaN to zero."""
    bits = bits_of(target)
    if target.startswith("uint"):
        low, high = 0.0, 2.0**bits
    else:
        low, high = -(2.0 ** (bits - 1)), 2.0 ** (bits - 1)
    # Powers of two are exact in any float; 2^31 - 1 itself would round up to 2^31.
    below = s.let(x <= tirx.const(low, source))
    above = s.let(x >= tirx.const(high, source))
    nan = s.let(tirx.isnan(x))
    outside = tirx.Or(tirx.Or(below, above), nan)
    # LLVM's cast of a number out of range is poison, even where its result isn't selected.
    inside = s.let(tirx.Select(outside, tirx.const(0, source), x))
    value = s.let(tirx.Cast(target, inside))
    value = tirx.Select(below, tirx.min_value(target), value)
    most = 2 ** (bits if target.startswith("uint") else bits - 1) - 1
    value = tirx.Select(above, literal(most, target), value)
    return tirx.Select(nan, tirx.const(0, target), value)


@scalar_rule("stablehlo.reduce_precision", cost=8)
def _reduce_precision(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    exponent = attribute(op.op, "exponent_bits")
    mantissa = attribute(op.op, "mantissa_bits")
    return round_to(s, x, exponent, mantissa)
