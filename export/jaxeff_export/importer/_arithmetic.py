"""Rules of arithmetic, comparison, selection, logic, shifts and conversion.

Arithmetic wraps around, divides by zero and keeps NaN and signed zeros as XLA does; a shift by the
width or more is defined, unlike in C.
"""

import math
import operator
from collections.abc import Callable

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer._elementary import library
from jaxeff_export.importer._graph import attribute, compares_total_order, direction
from jaxeff_export.importer._scalar_rules import (
    NARROW,
    ScalarOp,
    Scope,
    bits_of,
    dtype_of,
    is_float,
    literal,
    narrow,
    round_to,
    scalar_rule,
    unsigned,
    visible_zero,
    widen,
)


@scalar_rule("stablehlo.compare")
def _compare(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
    if is_float(dtype_of(a)) and compares_total_order(op.op):
        a, b = _total_order(s, a), _total_order(s, b)
    return compare(direction(op.op), a, b, same=op.same_operands)


def compare(direction: str, a: Expr, b: Expr, *, same: bool = False) -> Expr:
    """Compares two scalars; ``same`` says that both are one value, which may be NaN."""
    dtype = dtype_of(a)
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return tirx.const(getattr(operator, direction.lower())(int(a.value), int(b.value)), "bool")
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
    return getattr(tirx, direction)(a, b)


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


scalar_rule("stablehlo.select")(lambda s, op, p, a, b: tirx.Select(p, a, b))


def _register_logic(name: str, of_conditions: Callable, of_integers: Callable) -> None:
    @scalar_rule(name)
    def rule(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
        return (of_conditions if op.dtype == "bool" else of_integers)(a, b)


def _differ(a: Expr, b: Expr) -> Expr:
    return tirx.NE(tirx.Cast("uint8", a), tirx.Cast("uint8", b))


_register_logic("stablehlo.and", tirx.And, operator.and_)
_register_logic("stablehlo.or", tirx.Or, operator.or_)
_register_logic("stablehlo.xor", _differ, operator.xor)


@scalar_rule("stablehlo.not", "importer.not")
def _not(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return negation(x) if op.dtype == "bool" else ~x


def negation(x: Expr) -> Expr:
    """Negates a condition: TVM turns ``not (a < b)`` into ``b <= a``, which is wrong for NaN."""
    return tirx.EQ(tirx.Cast("uint8", x), tirx.const(0, "uint8"))


scalar_rule("importer.equal")(lambda s, op, a, b: compare("EQ", a, b))


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
        a, b = b, a  # the best so far comes second: it stays when it is NaN
    else:
        # Equal numbers have equal bits, except for zeros: join the signs.
        bits = f"uint{bits_of(op.dtype)}"
        raw_a, raw_b = tirx.reinterpret(bits, a), tirx.reinterpret(bits, b)
        tie = tirx.reinterpret(op.dtype, raw_a & raw_b if is_maximum else raw_a | raw_b)
        b = s.let(tirx.Select(tirx.EQ(a, b), tie, b))
    # One choice: where another one stands behind `isnan`, TVM makes no vectors of either.
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


def _register_shift(name: str, shift: Callable) -> None:
    @scalar_rule(name, cost=2)
    def rule(s: Scope, op: ScalarOp, a: Expr, b: Expr) -> Expr:
        bits = bits_of(op.dtype)
        amount, inside = _shift_amount(s, op.dtype, b)
        shifted = tirx.Cast(op.dtype, shift(unsigned(a, bits), unsigned(amount, bits)))
        return tirx.Select(inside, shifted, tirx.const(0, op.dtype))


_register_shift("stablehlo.shift_left", operator.lshift)
_register_shift("stablehlo.shift_right_logical", operator.rshift)


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
