"""Arithmetic: wraps around, divides by zero and keeps NaN and signed zeros as XLA does."""

from __future__ import annotations

import math
from collections.abc import Callable

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.scalar._comparison import compare
from jaxeff_export.importer.scalar._functions import library
from jaxeff_export.importer.scalar._rules import ScalarOp, scalar_rule, unsigned, visible_zero
from jaxeff_export.importer.scalar._scope import Scope, bits_of, is_float, literal


def _wrapping(dtype: str) -> bool:
    return bits_of(dtype) in (32, 64)


def _wrap32(op: Callable, dtype: str, a: Expr, b: Expr) -> Expr:
    """Computes modulo 2**32 by way of 64 bits (LLVM narrows it again)."""
    wide = op(tirx.Cast("int64", tirx.Cast("int32", a)), tirx.Cast("int64", tirx.Cast("int32", b)))
    return tirx.Cast(dtype, wide)


def _halves(s: Scope, x: Expr) -> tuple[Expr, Expr]:
    bits = s.let(unsigned(x, 64))
    mask = tirx.const(0xFFFFFFFF, "uint64")
    return s.let(bits & mask), s.let(bits >> tirx.const(32, "uint64"))


def _join(s: Scope, low: Expr, high: Expr, dtype: str) -> Expr:
    mask, shift = tirx.const(0xFFFFFFFF, "uint64"), tirx.const(32, "uint64")
    return tirx.Cast(dtype, (low & mask) | ((high & mask) << shift))


@scalar_rule("stablehlo.add")
def _add(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if op.dtype == "bool":
        return tirx.Or(a, b)
    if is_float(op.dtype):
        return visible_zero(a) + visible_zero(b)
    if not _wrapping(op.dtype):
        return a + b
    if bits_of(op.dtype) == 32:
        return _wrap32(lambda x, y: x + y, op.dtype, a, b)
    # Halves in 64-bit words: their sum has 33 bits, so no addition can overflow in TVM's eyes.
    (al, ah), (bl, bh) = _halves(s, a), _halves(s, b)
    low = s.let(al + bl)
    return _join(s, low, s.let(ah + bh + (low >> tirx.const(32, "uint64"))), op.dtype)


@scalar_rule("stablehlo.subtract")
def _subtract(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(op.dtype):
        if op.same_operands:  # inf - inf is NaN
            return tirx.abs(a) * visible_zero(tirx.const(0.0, op.dtype))
        return a - b
    if not _wrapping(op.dtype):
        return a - b
    if bits_of(op.dtype) == 32:
        return _wrap32(lambda x, y: x - y, op.dtype, a, b)
    (al, ah), (bl, bh) = _halves(s, a), _halves(s, b)
    one, shift = tirx.const(1 << 32, "uint64"), tirx.const(32, "uint64")
    low = s.let(al + one - bl)  # the borrow shows as a missing bit 32
    high = s.let(ah + one - bh - (tirx.const(1, "uint64") - (low >> shift)))
    return _join(s, low, high, op.dtype)


@scalar_rule("stablehlo.multiply")
def _multiply(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if op.dtype == "bool":
        return tirx.And(a, b)
    if is_float(op.dtype):
        return visible_zero(a) * visible_zero(b)
    if not _wrapping(op.dtype):
        return a * b
    if bits_of(op.dtype) == 32:
        return _wrap32(lambda x, y: x * y, op.dtype, a, b)  # |product| <= 2**62
    # (al + 2^32 ah) * (bl + 2^32 bh) mod 2^64: ah * bh drops out. Factors below 2^32 keep every
    # product below 2^64, and masked terms keep `high` from wrapping.
    (al, ah), (bl, bh) = _halves(s, a), _halves(s, b)
    mask, shift = tirx.const(0xFFFFFFFF, "uint64"), tirx.const(32, "uint64")
    low = s.let(al * bl)
    high = s.let((low >> shift) + ((al * bh) & mask) + ((ah * bl) & mask))
    return _join(s, low, high, op.dtype)


@scalar_rule("stablehlo.divide", cost=4)
def _divide(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(op.dtype):
        if op.same_operands:
            return tirx.Select(
                tirx.And(tirx.isfinite(a), tirx.abs(a) > tirx.const(0, op.dtype)),
                tirx.const(1, op.dtype),
                tirx.const(float("nan"), op.dtype),
            )
        return visible_zero(a) / visible_zero(b)
    quotient, _ = _integer_division(s, op.dtype, a, b)
    return quotient


@scalar_rule("stablehlo.remainder", cost=8)
def _remainder(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(op.dtype):
        return library("fmod")(s, a, b)
    _, remainder = _integer_division(s, op.dtype, a, b)
    return remainder


def _integer_division(s: Scope, dtype: str, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Divides, truncating; x / 0 is all ones, x rem 0 is x, and min / -1 wraps to min."""
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    # Both branches of a selection are computed: the divisor has to be safe before dividing.
    by_zero = s.let(compare("EQ", b, zero))
    divisor = s.let(tirx.Select(by_zero, one, b))
    if dtype.startswith("uint"):
        ones = literal(2 ** bits_of(dtype) - 1, dtype)
        quotient = s.let(tirx.truncdiv(a, divisor))
        remainder = s.let(tirx.truncmod(a, divisor))
        return tirx.Select(by_zero, ones, quotient), tirx.Select(by_zero, a, remainder)
    minimum, minus_one = tirx.min_value(dtype), tirx.const(-1, dtype)
    overflow = s.let(tirx.And(compare("EQ", a, minimum), compare("EQ", b, minus_one)))
    divisor = s.let(tirx.Select(overflow, one, divisor))
    quotient = s.let(tirx.truncdiv(a, divisor))
    remainder = s.let(tirx.truncmod(a, divisor))
    return tirx.Select(by_zero, minus_one, quotient), tirx.Select(by_zero, a, remainder)


@scalar_rule("stablehlo.maximum")
def _maximum(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    return _extremum(s, op, True, a, b)


@scalar_rule("stablehlo.minimum")
def _minimum(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    return _extremum(s, op, False, a, b)


def _extremum(s: Scope, op: ScalarOp, is_maximum: bool, a: Expr, b: Expr) -> Expr:
    """Chooses the better one; a NaN is never beaten, and 0 is more than -0."""
    if op.dtype == "bool":
        return tirx.Or(a, b) if is_maximum else tirx.And(a, b)
    if not is_float(op.dtype):
        return tirx.Select(compare("GT" if is_maximum else "LT", a, b), a, b)
    strictly, weakly = (tirx.GT, tirx.GE) if is_maximum else (tirx.LT, tirx.LE)
    if isinstance(b, tirx.FloatImm):
        a, b = b, a
    # With NaN for b the comparison is false and b is taken, which is right for this order only.
    if isinstance(a, tirx.FloatImm) and not math.isnan(a.value):  # one comparison is enough
        positive = math.copysign(1.0, a.value) > 0
        better = weakly if positive == is_maximum else strictly
        return tirx.Select(better(a, b), a, b)
    if op.in_reduction:
        # `a` is the best so far, which the next step waits for. This order keeps it when it is NaN
        # and is what the instruction for a maximum does; whether `b` is NaN is known beforehand.
        return tirx.Select(tirx.isnan(b), b, tirx.Select(strictly(b, a), b, a))
    # Equal numbers have equal bits, except for zeros: join the signs.
    bits = f"uint{bits_of(op.dtype)}"
    raw_a, raw_b = tirx.reinterpret(bits, a), tirx.reinterpret(bits, b)
    tie = tirx.reinterpret(op.dtype, raw_a & raw_b if is_maximum else raw_a | raw_b)
    b = s.let(tirx.Select(tirx.EQ(a, b), tie, b))
    return tirx.Select(tirx.Or(strictly(a, b), tirx.isnan(a)), a, b)


@scalar_rule("stablehlo.clamp", cost=2)
def _clamp(s: Scope, op: ScalarOp, low: Expr, x: Expr, high: Expr) -> Expr:
    return _minimum(s, op, high, s.let(_maximum(s, op, low, x)))


@scalar_rule("stablehlo.negate")
def _negate(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    if is_float(op.dtype):
        # 0 - x would make 0 of 0, where -0 is asked for.
        return tirx.const(-0.0, op.dtype) - x
    return _subtract(s, op, tirx.const(0, op.dtype), x)


@scalar_rule("stablehlo.abs")
def _abs(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    if is_float(op.dtype):
        return tirx.abs(x)
    if op.dtype.startswith("uint"):
        return x
    return tirx.Select(compare("LT", x, tirx.const(0, op.dtype)), _negate(s, op, x), x)


@scalar_rule("stablehlo.sign")
def _sign(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    zero, one = tirx.const(0, op.dtype), tirx.const(1, op.dtype)
    above = compare("GT", x, zero)
    if op.dtype.startswith("uint"):
        return tirx.Select(above, one, zero)
    minus = tirx.const(-1, op.dtype)
    # Neither above nor below zero: signed zeros and NaN are returned as they are.
    return tirx.Select(above, one, tirx.Select(compare("LT", x, zero), minus, x))


@scalar_rule("stablehlo.power", cost=30)
def _power(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(op.dtype):
        return library("pow")(s, a, b)
    return _integer_power(s, op, a, b)


def _integer_power(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    """Squares and multiplies; a negative exponent gives the truncated fraction."""
    zero, one = tirx.const(0, op.dtype), tirx.const(1, op.dtype)
    # One step per bit of the exponent: straight-line code, since expressions have no loops.
    result, square = one, a
    for bit in range(bits_of(op.dtype)):
        odd = compare("NE", (b >> tirx.const(bit, op.dtype)) & one, zero)
        product = s.let(_multiply(s, op, result, square))
        result = s.let(tirx.Select(odd, product, result))
        square = s.let(_multiply(s, op, square, square))
    if op.dtype.startswith("uint"):
        return result
    minus = tirx.const(-1, op.dtype)
    even = compare("EQ", b & one, zero)
    unit = tirx.Select(compare("EQ", a, minus), tirx.Select(even, one, minus), zero)
    fraction = tirx.Select(compare("EQ", a, one), one, unit)
    return tirx.Select(compare("LT", b, zero), fraction, result)
