"""One rule per elementwise operation, on scalars.

The same table serves whole tensors (``elementwise``) and the bodies of reductions, scatters and
sorts. A rule is ``rule(scope, op, *operands)``: ``op`` says the result dtype and holds the
attributes. What each must get exactly right is in the StableHLO specification; XLA's choices are
taken where the specification leaves one (division by zero, out-of-range conversions).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx import Expr

from . import numerics
from .attributes import attribute, compares_total_order, direction
from .scope import Scope, bits_of, dtype_of, is_float


@dataclasses.dataclass(frozen=True)
class ScalarOp:
    """What a scalar rule may ask of its operation."""

    dtype: str  # of the result
    op: Any
    same_operands: bool = False  # x op x: TVM must not simplify it as if x were never NaN


ScalarRule = Callable[..., Expr]


@dataclasses.dataclass(frozen=True)
class ScalarEntry:
    """A rule and roughly how many additions it costs (decides what is computed twice)."""

    rule: ScalarRule
    cost: int = 1


SCALAR_RULES: dict[str, ScalarEntry] = {}


def scalar_rule(*names: str, cost: int = 1) -> Callable[[ScalarRule], ScalarRule]:
    """Register the rule of one or more operations."""

    def register(rule: ScalarRule) -> ScalarRule:
        for name in names:
            SCALAR_RULES[name] = ScalarEntry(rule, cost)
        return rule

    return register


def apply_scalar(name: str, s: Scope, op: ScalarOp, *operands: Expr) -> Expr:
    """Apply the rule of ``name``, computing 16-bit floats in 32 bits and rounding once."""
    entry = SCALAR_RULES[name]
    if name in _EXACT_IN_ANY_DTYPE:
        return s.let(entry.rule(s, op, *operands))
    operands = tuple(_widen(s, x) for x in operands)
    if op.dtype not in ("float16", "bfloat16"):
        return s.let(entry.rule(s, op, *operands))
    wide = s.let(entry.rule(s, dataclasses.replace(op, dtype="float32"), *operands))
    return _narrow(s, wide, op.dtype)


_EXACT_IN_ANY_DTYPE = ("stablehlo.convert", "stablehlo.select")


def _widen(s: Scope, x: Expr) -> Expr:
    return s.let(tirx.Cast("float32", x)) if dtype_of(x) == "float16" else x


def _narrow(s: Scope, x: Expr, dtype: str) -> Expr:
    """Round a float32 to a 16-bit float, as it is held in a scope."""
    if dtype == "bfloat16":
        nan = tirx.const(float("nan"), "float32")  # whose upper half is a NaN too
        return s.let(tirx.Select(tirx.isnan(x), nan, _round_to(s, x, 8, 7)))
    return s.let(tirx.Cast(dtype, x))


def _visible_zero(x: Expr) -> Expr:
    """Hide a literal zero from TVM, which takes 0 * x for 0 and x + 0 for x; LLVM sees it."""
    if isinstance(x, tirx.FloatImm) and x.value == 0:
        bits = bits_of(dtype_of(x))
        minus_zero = tirx.reinterpret(dtype_of(x), tirx.const(1 << (bits - 1), f"uint{bits}"))
        return minus_zero if math.copysign(1.0, x.value) < 0 else tirx.abs(minus_zero)
    return x


def _wrapping(dtype: str) -> bool:
    return bits_of(dtype) in (32, 64)


def _unsigned(x: Expr, bits: int) -> Expr:
    return tirx.Cast(f"uint{bits}", x)


def _wrap32(op: Callable, dtype: str, a: Expr, b: Expr) -> Expr:
    """32-bit arithmetic modulo 2**32, by way of 64 bits (LLVM narrows it again)."""
    wide = op(tirx.Cast("int64", tirx.Cast("int32", a)), tirx.Cast("int64", tirx.Cast("int32", b)))
    return tirx.Cast(dtype, wide)


def _halves(s: Scope, x: Expr) -> tuple[Expr, Expr]:
    bits = s.let(_unsigned(x, 64))
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
        return _visible_zero(a) + _visible_zero(b)
    if not _wrapping(op.dtype):
        return a + b
    if bits_of(op.dtype) == 32:
        return _wrap32(lambda x, y: x + y, op.dtype, a, b)
    (al, ah), (bl, bh) = _halves(s, a), _halves(s, b)
    low = s.let(al + bl)
    return _join(s, low, s.let(ah + bh + (low >> tirx.const(32, "uint64"))), op.dtype)


@scalar_rule("stablehlo.subtract")
def _subtract(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(op.dtype):
        if op.same_operands:  # inf - inf is NaN
            return tirx.abs(a) * _visible_zero(tirx.const(0.0, op.dtype))
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
        return _visible_zero(a) * _visible_zero(b)
    if not _wrapping(op.dtype):
        return a * b
    if bits_of(op.dtype) == 32:
        return _wrap32(lambda x, y: x * y, op.dtype, a, b)  # |product| <= 2**62
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
        return _visible_zero(a) / _visible_zero(b)
    quotient, _ = _integer_division(s, op.dtype, a, b)
    return quotient


@scalar_rule("stablehlo.remainder", cost=8)
def _remainder(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(op.dtype):
        return _library("fmod")(s, a, b)
    _, remainder = _integer_division(s, op.dtype, a, b)
    return remainder


def _integer_division(s: Scope, dtype: str, a: Expr, b: Expr) -> tuple[Expr, Expr]:
    """Truncating division; x / 0 is all ones, x rem 0 is x, and min / -1 wraps to min."""
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    by_zero = s.let(compare("EQ", b, zero))
    divisor = s.let(tirx.Select(by_zero, one, b))
    if dtype.startswith("uint"):
        ones = tirx.const(2 ** bits_of(dtype) - 1, dtype)
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
    if op.dtype == "bool":
        return tirx.Or(a, b)
    if not is_float(op.dtype):
        return tirx.Select(compare("GT", a, b), a, b)
    return _extremum(a > b, a, b)


@scalar_rule("stablehlo.minimum")
def _minimum(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if op.dtype == "bool":
        return tirx.And(a, b)
    if not is_float(op.dtype):
        return tirx.Select(compare("LT", a, b), a, b)
    return _extremum(a < b, a, b)


def _extremum(better: Expr, a: Expr, b: Expr) -> Expr:
    """Choose ``a`` when it is better or NaN; a NaN in ``b`` is never beaten."""
    if isinstance(a, tirx.FloatImm):  # a constant that is not NaN needs one comparison only
        return tirx.Select(better, a, b)
    return tirx.Select(tirx.Or(better, tirx.isnan(a)), a, b)


@scalar_rule("stablehlo.clamp", cost=2)
def _clamp(s: Scope, op: ScalarOp, low: Expr, x: Expr, high: Expr) -> Expr:
    return _minimum(s, op, high, s.let(_maximum(s, op, low, x)))


@scalar_rule("stablehlo.negate")
def _negate(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    if is_float(op.dtype):
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


@scalar_rule("stablehlo.compare")
def _compare(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(dtype_of(a)) and compares_total_order(op.op):
        a, b = _total_order(s, a), _total_order(s, b)
    return compare(direction(op.op), a, b, same=op.same_operands)


def compare(direction: str, a: Expr, b: Expr, *, same: bool = False) -> Expr:
    """Compare two scalars; ``same`` says that both are one value, which may be NaN."""
    dtype = dtype_of(a)
    if dtype == "bool":
        a, b = tirx.Cast("uint8", a), tirx.Cast("uint8", b)
    elif dtype in ("int32", "int64"):
        a, b = _biased(a, dtype), _biased(b, dtype)
    if same and is_float(dtype):
        if direction in ("EQ", "LE", "GE"):
            return _negation(tirx.isnan(a))
        return tirx.isnan(a) if direction == "NE" else tirx.const(False, "bool")
    if direction == "NE" and is_float(dtype):  # TVM's is false for NaN
        return _negation(tirx.EQ(a, b))
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
    """Map a signed integer to the unsigned one of the same rank.

    TVM takes int32 and int64 for loop indices, and simplifies comparisons of these as if nothing
    overflowed: ``x == -2**31`` becomes false. Unsigned integers are left alone; LLVM undoes this.
    """
    bits = bits_of(dtype)
    sign = 1 << (bits - 1)
    if isinstance(x, tirx.IntImm):
        return tirx.const((int(x.value) + sign) % (1 << bits), f"uint{bits}")
    return _unsigned(x, bits) ^ tirx.const(sign, f"uint{bits}")


def _total_order(s: Scope, x: Expr) -> Expr:
    """The integer that orders floats as IEEE's totalOrder does."""
    bits = bits_of(dtype_of(x))
    kind = f"int{bits}"
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
    return _negation(x) if op.dtype == "bool" else ~x


def _negation(x: Expr) -> Expr:
    """Negate a condition: TVM turns ``not (a < b)`` into ``b <= a``, which is wrong for NaN."""
    return tirx.EQ(tirx.Cast("uint8", x), tirx.const(0, "uint8"))


@scalar_rule("importer.equal")
def _equal(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    return compare("EQ", a, b)


@scalar_rule("stablehlo.shift_left", cost=2)
def _shift_left(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    value = _unsigned(a, bits_of(op.dtype))
    shift, inside = _shift_amount(s, op.dtype, b)
    shifted = tirx.Cast(op.dtype, value << _unsigned(shift, bits_of(op.dtype)))
    return tirx.Select(inside, shifted, tirx.const(0, op.dtype))


@scalar_rule("stablehlo.shift_right_logical", cost=2)
def _shift_right_logical(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    value = _unsigned(a, bits_of(op.dtype))
    shift, inside = _shift_amount(s, op.dtype, b)
    shifted = tirx.Cast(op.dtype, value >> _unsigned(shift, bits_of(op.dtype)))
    return tirx.Select(inside, shifted, tirx.const(0, op.dtype))


@scalar_rule("stablehlo.shift_right_arithmetic", cost=2)
def _shift_right_arithmetic(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    bits = bits_of(op.dtype)
    signed = f"int{bits}"
    shift, inside = _shift_amount(s, op.dtype, b)
    shift = tirx.Select(inside, tirx.Cast(signed, shift), tirx.const(bits - 1, signed))
    return tirx.Cast(op.dtype, tirx.Cast(signed, a) >> shift)


def _shift_amount(s: Scope, dtype: str, b: Expr) -> tuple[Expr, Expr]:
    """The amount made safe, and whether it was inside the width (as unsigned) at all."""
    bits = bits_of(dtype)
    amount = s.let(_unsigned(b, bits))
    inside = s.let(amount < tirx.const(bits, f"uint{bits}"))
    return s.let(tirx.Select(inside, amount, tirx.const(0, f"uint{bits}"))), inside


@scalar_rule("stablehlo.popcnt", cost=2)
def _popcnt(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    wide = "uint64" if bits_of(op.dtype) == 64 else "uint32"
    value = tirx.Cast(wide, _unsigned(x, bits_of(op.dtype)))
    return tirx.Cast(op.dtype, tirx.popcount(value))


@scalar_rule("stablehlo.count_leading_zeros", cost=8)
def _count_leading_zeros(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    # Smear the top bit downwards; what is left of the width then counts the ones.
    bits = bits_of(op.dtype)
    wide = "uint64" if bits == 64 else "uint32"
    value = s.let(tirx.Cast(wide, _unsigned(x, bits)))
    shift = 1
    while shift < bits:
        value = s.let(value | (value >> tirx.const(shift, wide)))
        shift *= 2
    ones = tirx.Cast("int32", tirx.popcount(value))
    return tirx.Cast(op.dtype, tirx.const(bits, "int32") - ones)


@scalar_rule("stablehlo.is_finite")
def _is_finite(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.abs(x) < tirx.const(float("inf"), dtype_of(x))


@scalar_rule("stablehlo.floor")
def _floor(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.floor(x)


@scalar_rule("stablehlo.ceil")
def _ceil(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.ceil(x)


@scalar_rule("stablehlo.round_nearest_even", cost=2)
def _round_nearest_even(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.nearbyint(x)


@scalar_rule("stablehlo.round_nearest_afz", cost=4)
def _round_nearest_afz(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    whole = s.let(tirx.trunc(x))
    away = s.let(tirx.abs(x - whole) >= tirx.const(0.5, op.dtype))
    one = tirx.const(1, op.dtype)
    step = tirx.Select(x < tirx.const(0, op.dtype), -one, one)
    return tirx.Select(away, whole + step, whole)


@scalar_rule("stablehlo.sqrt", cost=4)
def _sqrt(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.sqrt(x)


@scalar_rule("stablehlo.rsqrt", cost=8)
def _rsqrt(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.const(1, op.dtype) / tirx.sqrt(x)


@scalar_rule("stablehlo.cbrt", cost=20)
def _cbrt(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.call_pure_extern(op.dtype, "cbrtf" if op.dtype == "float32" else "cbrt", x)


def _register_unary(name: str, in_32_bits: Callable, in_64_bits: Callable, cost: int) -> None:
    @scalar_rule(name, cost=cost)
    def rule(s: Scope, op: ScalarOp, x: Expr) -> Expr:
        return in_32_bits(s, x) if op.dtype == "float32" else in_64_bits(s, x)


def _library(name: str) -> Callable:
    """The C library's function, for either width."""

    def call(s: Scope, *operands: Expr) -> Expr:
        dtype = dtype_of(operands[0])
        symbol = f"{name}f" if dtype == "float32" else name
        return tirx.call_pure_extern(dtype, symbol, *operands)

    return call


_register_unary("stablehlo.exponential", numerics.exp, _library("exp"), 12)
_register_unary("stablehlo.exponential_minus_one", numerics.expm1, _library("expm1"), 20)
_register_unary("stablehlo.log", numerics.log, _library("log"), 16)
_register_unary("stablehlo.log_plus_one", numerics.log1p, _library("log1p"), 24)
_register_unary("stablehlo.tanh", numerics.tanh, _library("tanh"), 20)
_register_unary("stablehlo.sine", _library("sin"), _library("sin"), 20)
_register_unary("stablehlo.cosine", _library("cos"), _library("cos"), 20)
_register_unary("stablehlo.tan", _library("tan"), _library("tan"), 20)
_register_unary(
    "stablehlo.logistic",
    numerics.logistic,
    lambda s, x: tirx.const(1, "float64") / (tirx.const(1, "float64") + _library("exp")(s, -x)),
    16,
)


@scalar_rule("stablehlo.power", cost=30)
def _power(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(op.dtype):
        return _library("pow")(s, a, b)
    return _integer_power(s, op, a, b)


def _integer_power(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    """Square and multiply; a negative exponent gives what truncation of the fraction gives."""
    zero, one = tirx.const(0, op.dtype), tirx.const(1, op.dtype)
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


@scalar_rule("stablehlo.atan2", cost=30)
def _atan2(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    return _library("atan2")(s, a, b)


@scalar_rule("stablehlo.convert", cost=1)
def _convert(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    x = _widen(s, x)
    source, target = dtype_of(x), op.dtype
    if target in ("float16", "bfloat16"):
        if source != "float32":
            x = s.let(tirx.Cast("float32", x))
        return _narrow(s, x, target)
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
    return _round_to(s, x, exponent, mantissa)


def _round_to(s: Scope, x: Expr, exponent_bits: int, mantissa_bits: int) -> Expr:
    """Round a float32 or float64 to fewer bits, to nearest even; overflow goes to infinity."""
    dtype = dtype_of(x)
    width = bits_of(dtype)
    own_mantissa, own_exponent = (23, 8) if width == 32 else (52, 11)
    kind = f"uint{width}"

    def const(value: int) -> Expr:
        return tirx.const(value, kind)

    raw = s.let(tirx.reinterpret(kind, x))
    sign = s.let(raw & const(1 << (width - 1)))
    magnitude = s.let(raw & const((1 << (width - 1)) - 1))
    drop = own_mantissa - mantissa_bits
    if drop > 0:
        last = s.let((magnitude >> const(drop)) & const(1))
        magnitude = s.let(magnitude + const((1 << (drop - 1)) - 1) + last)
        magnitude = s.let(magnitude & const(((1 << (width - 1)) - 1) & ~((1 << drop) - 1)))
    if exponent_bits < own_exponent:
        bias, own_bias = (1 << (exponent_bits - 1)) - 1, (1 << (own_exponent - 1)) - 1
        largest = ((own_bias + bias) << own_mantissa) | (
            ((1 << own_mantissa) - 1) & ~((1 << max(drop, 0)) - 1)
        )
        smallest = (own_bias - bias + 1) << own_mantissa
        infinity = ((1 << own_exponent) - 1) << own_mantissa
        magnitude = s.let(tirx.Select(magnitude > const(largest), const(infinity), magnitude))
        magnitude = s.let(tirx.Select(magnitude < const(smallest), const(0), magnitude))
    rounded = tirx.reinterpret(dtype, s.let(sign | magnitude))
    return tirx.Select(tirx.isnan(x), x, rounded)
