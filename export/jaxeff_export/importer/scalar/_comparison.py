"""Comparison, selection and logic."""

from __future__ import annotations

import operator

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.reading import compares_total_order, direction
from jaxeff_export.importer.scalar._rules import ScalarOp, scalar_rule, unsigned
from jaxeff_export.importer.scalar._scope import Scope, bits_of, dtype_of, is_float


@scalar_rule("stablehlo.compare")
def _compare(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(dtype_of(a)) and compares_total_order(op.op):
        a, b = _total_order(s, a), _total_order(s, b)
    return compare(direction(op.op), a, b, same=op.same_operands)


_ORDER = {
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
}


def compare(direction: str, a: Expr, b: Expr, *, same: bool = False) -> Expr:
    """Compares two scalars; ``same`` says that both are one value, which may be NaN."""
    dtype = dtype_of(a)
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return tirx.const(_ORDER[direction](int(a.value), int(b.value)), "bool")
    if dtype == "bool":
        a, b = tirx.Cast("uint8", a), tirx.Cast("uint8", b)
    elif dtype in ("int32", "int64"):
        a, b = _biased(a, dtype), _biased(b, dtype)
    if same and is_float(dtype):
        if direction in ("EQ", "LE", "GE"):
            return negation(tirx.isnan(a))
        return tirx.isnan(a) if direction == "NE" else tirx.const(False, "bool")
    if direction == "NE" and is_float(dtype):  # TVM's is false for NaN
        return negation(tirx.EQ(a, b))
    node = {
        "EQ": tirx.EQ,
        "NE": tirx.NE,
        "LT": tirx.LT,
        "LE": tirx.LE,
        "GT": tirx.GT,
        "GE": tirx.GE,
    }[direction]
    return node(a, b)


def _biased(x: Expr, dtype: str) -> Expr:
    """Maps a signed integer to the unsigned one of the same rank.

    TVM takes int32 and int64 for loop indices, and simplifies comparisons of these as if nothing
    overflowed: ``x == -2**31`` becomes false. Unsigned integers are left alone; LLVM undoes this.
    """
    bits = bits_of(dtype)
    sign = 1 << (bits - 1)
    if isinstance(x, tirx.IntImm):
        return tirx.const((int(x.value) + sign) % (1 << bits), f"uint{bits}")
    return unsigned(x, bits) ^ tirx.const(sign, f"uint{bits}")


def _total_order(s: Scope, x: Expr) -> Expr:
    """Maps floats to integers ordered as IEEE's totalOrder."""
    bits = bits_of(dtype_of(x))
    kind = f"int{bits}"
    # Floats are signed magnitudes: below zero, flipping all bits but the sign reverses the order.
    raw = s.let(tirx.reinterpret(kind, x))
    return s.let(raw ^ ((raw >> tirx.const(bits - 1, kind)) & tirx.max_value(kind)))


@scalar_rule("stablehlo.select")
def _select(s: Scope, op: ScalarOp, p: Expr, a: Expr, b: Expr) -> Expr:
    return tirx.Select(p, a, b)


@scalar_rule("stablehlo.and")
def _and(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    return tirx.And(a, b) if op.dtype == "bool" else a & b


@scalar_rule("stablehlo.or")
def _or(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    return tirx.Or(a, b) if op.dtype == "bool" else a | b


@scalar_rule("stablehlo.xor")
def _xor(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if op.dtype == "bool":
        return tirx.NE(tirx.Cast("uint8", a), tirx.Cast("uint8", b))
    return a ^ b


@scalar_rule("stablehlo.not", "importer.not")
def _not(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return negation(x) if op.dtype == "bool" else ~x


def negation(x: Expr) -> Expr:
    """Negates a condition: TVM turns ``not (a < b)`` into ``b <= a``, which is wrong for NaN."""
    return tirx.EQ(tirx.Cast("uint8", x), tirx.const(0, "uint8"))


@scalar_rule("importer.equal")
def _equal(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    return compare("EQ", a, b)
