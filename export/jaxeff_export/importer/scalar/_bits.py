"""Shifts and bit counts: a shift by the width or more is defined, unlike in C."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.scalar._rules import ScalarOp, scalar_rule, unsigned
from jaxeff_export.importer.scalar._scope import Scope, bits_of


@scalar_rule("stablehlo.shift_left", cost=2)
def _shift_left(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    value = unsigned(a, bits_of(op.dtype))
    shift, inside = _shift_amount(s, op.dtype, b)
    shifted = tirx.Cast(op.dtype, value << unsigned(shift, bits_of(op.dtype)))
    return tirx.Select(inside, shifted, tirx.const(0, op.dtype))


@scalar_rule("stablehlo.shift_right_logical", cost=2)
def _shift_right_logical(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    value = unsigned(a, bits_of(op.dtype))
    shift, inside = _shift_amount(s, op.dtype, b)
    shifted = tirx.Cast(op.dtype, value >> unsigned(shift, bits_of(op.dtype)))
    return tirx.Select(inside, shifted, tirx.const(0, op.dtype))


@scalar_rule("stablehlo.shift_right_arithmetic", cost=2)
def _shift_right_arithmetic(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    bits = bits_of(op.dtype)
    signed = f"int{bits}"
    shift, inside = _shift_amount(s, op.dtype, b)
    # A shift by the width or more leaves copies of the sign, as one by width - 1 does.
    shift = tirx.Select(inside, tirx.Cast(signed, shift), tirx.const(bits - 1, signed))
    if op.dtype == signed:
        return a >> shift
    return tirx.Cast(op.dtype, tirx.reinterpret(signed, a) >> shift)


def _shift_amount(s: Scope, dtype: str, b: Expr) -> tuple[Expr, Expr]:
    """Makes a shift's amount safe; also returns whether it was below the width (as unsigned)."""
    bits = bits_of(dtype)
    amount = s.let(unsigned(b, bits))
    inside = s.let(amount < tirx.const(bits, f"uint{bits}"))
    return s.let(tirx.Select(inside, amount, tirx.const(0, f"uint{bits}"))), inside


@scalar_rule("stablehlo.popcnt", cost=2)
def _popcnt(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    wide = "uint64" if bits_of(op.dtype) == 64 else "uint32"
    value = tirx.Cast(wide, unsigned(x, bits_of(op.dtype)))
    return tirx.Cast(op.dtype, tirx.popcount(value))


@scalar_rule("stablehlo.count_leading_zeros", cost=8)
def _count_leading_zeros(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    # Smear the top bit downwards; what is left of the width then counts the ones.
    bits = bits_of(op.dtype)
    wide = "uint64" if bits == 64 else "uint32"
    value = s.let(tirx.Cast(wide, unsigned(x, bits)))
    shift = 1
    while shift < bits:
        value = s.let(value | (value >> tirx.const(shift, wide)))
        shift *= 2
    ones = tirx.Cast("int32", tirx.popcount(value))
    return tirx.Cast(op.dtype, tirx.const(bits, "int32") - ones)
