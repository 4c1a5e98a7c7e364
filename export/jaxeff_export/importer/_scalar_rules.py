"""Scalar expressions, and the table of rules that write them: one per elementwise operation.

One table serves whole tensors (``_elementwise``) and the bodies of reductions. A rule is
``rule(scope, op, *operands)``: ``op`` says the result dtype and holds the attributes. The rules are
in ``_arithmetic`` and ``_elementary``. What each must get exactly right is in the StableHLO
specification; XLA's choices are taken where the specification leaves one (division by zero,
out-of-range conversions).

A rule writes its intermediates through :meth:`Scope.let`; the whole computation then becomes one
nested ``Let`` that is linear in the number of operations, however often a value is used again.

Sharp edges of TVM's scalar expressions, handled here so that no rule has to: signed and unsigned
32- and 64-bit arithmetic is marked as never overflowing; a literal is refused, or becomes another
number, where it is converted to a dtype that it doesn't fit (``literal``); ``x != x`` is simplified
to false.

TVM computes with no narrow floats: a bfloat16 cannot be bound to a name, and 8-bit floats are bytes
to most of TVM. So scopes hold these as float32, and always one that the narrow type represents:
results are rounded by ``round_narrow``, written by ``store`` (which is exact) and read by ``load``.
TVM turns buffers of these types that lie inside a kernel into float32, so ``load`` and ``store``
work on parameters only. Kernels of these types are not fused.
"""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.tirx import Expr


def dtype_of(expr: Expr) -> str:
    """Returns the dtype name of a scalar expression."""
    return str(expr.ty.dtype)


def is_float(dtype: str) -> bool:
    """Tells floating-point dtypes (bfloat16 included) from integers and booleans."""
    return "float" in dtype


def bits_of(dtype: str) -> int:
    """Reads the width of an integer or floating-point dtype in bits off its name."""
    digits = re.search(r"\d+", dtype)
    return int(digits.group()) if digits else 1  # bool


def literal(value: int | float | bool, dtype: str) -> Expr:
    """Returns a constant; an unsigned one beyond the signed range as bits.

    TVM converts literals when it simplifies, those in the branches of a selection too, and keeps
    all of them in 64 signed bits. It leaves bits alone; LLVM sees through them.
    """
    bits = bits_of(dtype)
    if dtype.startswith("uint") and int(value) >> (bits - 1):
        return tirx.reinterpret(dtype, tirx.const(int(value) - (1 << bits), f"int{bits}"))
    return tirx.const(value, dtype)


class Scope:
    """Collects ``let`` bindings and wraps a result in them."""

    def __init__(self) -> None:
        self._bindings: list[tuple[tirx.Var, Expr]] = []

    def let(self, expr: Expr) -> Expr:
        """Names ``expr`` so that using it several times computes it once."""
        if isinstance(expr, tirx.Var | tirx.IntImm | tirx.FloatImm):
            return expr
        var = tirx.Var(f"v{len(self._bindings)}", dtype_of(expr))
        self._bindings.append((var, expr))
        return var

    def value(self, expr: Expr) -> Expr:
        """Returns what a name of this scope stands for; anything else as it is."""
        if isinstance(expr, tirx.Var):
            for var, value in reversed(self._bindings):
                if var.same_as(expr):
                    return value
        return expr

    def wrap(self, result: Expr) -> Expr:
        """Returns ``result`` inside all bindings made so far."""
        bindings = self._bindings
        # The last name is the result itself: no let is needed for it.
        if bindings and result is bindings[-1][0]:
            *bindings, (_, result) = bindings
        for var, value in reversed(bindings):
            result = tirx.Let(var, value, result)
        return result


@dataclasses.dataclass(frozen=True)
class Format:
    """The bits of an 8-bit float; its name's suffix lists what it lacks (infinity, NaN, -0).

    Attributes:
        exponent: bits of the exponent.
        mantissa: bits of the mantissa.
        bias: bias of the exponent.
        nan: the bits of NaN; 0x80 means that there is no negative zero.
        infinity: the bits of infinity, if there is one.
        largest: the bits of the largest number.
    """

    exponent: int
    mantissa: int
    bias: int
    nan: int
    infinity: int | None
    largest: int

    @property
    def maximum(self) -> float:
        """Returns the largest number."""
        fraction = self.largest % (1 << self.mantissa) / (1 << self.mantissa)
        return (1 + fraction) * 2.0 ** ((self.largest >> self.mantissa) - self.bias)

    @property
    def smallest_normal(self) -> float:
        """Returns the smallest number that is not subnormal."""
        return 2.0 ** (1 - self.bias)

    @property
    def step(self) -> float:
        """Returns the distance between subnormal numbers."""
        return 2.0 ** (1 - self.bias - self.mantissa)


FLOAT8 = {
    "float8_e3m4": Format(3, 4, 3, 0x78, 0x70, 0x6F),
    "float8_e4m3": Format(4, 3, 7, 0x7C, 0x78, 0x77),
    "float8_e4m3b11fnuz": Format(4, 3, 11, 0x80, None, 0x7F),
    "float8_e4m3fn": Format(4, 3, 7, 0x7F, None, 0x7E),
    "float8_e4m3fnuz": Format(4, 3, 8, 0x80, None, 0x7F),
    "float8_e5m2": Format(5, 2, 15, 0x7E, 0x7C, 0x7B),
    "float8_e5m2fnuz": Format(5, 2, 16, 0x80, None, 0x7F),
}
HELD_AS_FLOAT32 = ("bfloat16", *FLOAT8)
NARROW = ("float16", *HELD_AS_FLOAT32)


def scalar_dtype(dtype: str) -> str:
    """Names the dtype of a scope's scalar that stands for an element of ``dtype``."""
    return "float32" if dtype in HELD_AS_FLOAT32 else dtype


def round_narrow(s: Scope, x: Expr, dtype: str) -> Expr:
    """Rounds a float32 to nearest even among the numbers of a narrow float."""
    nan, inf = _f32(float("nan")), _f32(float("inf"))
    if dtype == "bfloat16":
        return tirx.Select(tirx.isnan(x), nan, round_to(s, x, 8, 7))  # NaN's upper half is one too
    form = FLOAT8[dtype]
    # Subnormals lie a fixed step apart, a power of two, so rounding in units of it is exact.
    steps = s.let(tirx.nearbyint(x * _f32(1 / form.step)) * _f32(form.step))
    normal = s.let(round_to(s, x, 8, form.mantissa))
    value = s.let(tirx.Select(tirx.abs(x) < _f32(form.smallest_normal), steps, normal))
    beyond = nan if form.infinity is None else tirx.Select(x < _f32(0), -inf, inf)
    value = s.let(tirx.Select(tirx.abs(value) > _f32(form.maximum), beyond, value))
    if form.nan == 0x80:
        return tirx.Select(tirx.EQ(value, _f32(0)), _f32(0), value)
    return value


def round_to(s: Scope, x: Expr, exponent_bits: int, mantissa_bits: int) -> Expr:
    """Rounds a float32 or float64 to fewer bits, to nearest even; overflow goes to infinity."""
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
        # Half to even: half an ulp less one, plus the last bit kept. A carry out of the mantissa
        # rightly moves to the next exponent.
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
        # Subnormals of the smaller format become zero, as in XLA's reduce_precision.
        magnitude = s.let(tirx.Select(magnitude < const(smallest), const(0), magnitude))
    rounded = tirx.reinterpret(dtype, s.let(sign | magnitude))
    return tirx.Select(tirx.isnan(x), x, rounded)


def load(element: Expr) -> Expr:
    """Returns a tensor's element as scopes hold it."""
    dtype = dtype_of(element)
    if dtype not in HELD_AS_FLOAT32:
        return element
    if dtype == "bfloat16":
        bits = tirx.Cast("uint32", tirx.reinterpret("uint16", element))
        return tirx.reinterpret("float32", bits << _u32(16))
    form = FLOAT8[dtype]
    code = tirx.Cast("uint32", tirx.reinterpret("uint8", element))
    magnitude = code & _u32(0x7F)
    exponent = _u32((127 - form.bias) << 23)
    # The narrow exponent and mantissa, moved to float32's fields; only the bias differs.
    normal = tirx.reinterpret("float32", (magnitude << _u32(23 - form.mantissa)) + exponent)
    subnormal = tirx.Cast("float32", magnitude) * _f32(form.step)
    value = tirx.Select(magnitude < _u32(1 << form.mantissa), subnormal, normal)
    if form.infinity is not None:
        value = tirx.Select(tirx.EQ(magnitude, _u32(form.infinity)), _f32(float("inf")), value)
        is_nan = magnitude > _u32(form.infinity)
    else:
        is_nan = tirx.EQ(code & _u32(form.nan), _u32(form.nan))
        if form.nan == 0x80:
            is_nan = tirx.EQ(code, _u32(form.nan))
    value = tirx.Select(is_nan, _f32(float("nan")), value)
    sign = (code >> _u32(7)) << _u32(31)
    return tirx.reinterpret("float32", tirx.reinterpret("uint32", value) | sign)


def store(scalar: Expr, dtype: str) -> Expr:
    """Returns a scope's scalar as an element of a tensor of ``dtype``: the inverse of ``load``."""
    if dtype not in HELD_AS_FLOAT32:
        return scalar
    bits = tirx.reinterpret("uint32", scalar)
    if dtype == "bfloat16":
        return tirx.reinterpret(dtype, tirx.Cast("uint16", bits >> _u32(16)))
    form = FLOAT8[dtype]
    magnitude = bits & _u32(0x7FFFFFFF)
    # Exact: a scope holds only numbers of the narrow format, so no set bit is shifted out.
    normal = (magnitude >> _u32(23 - form.mantissa)) - _u32((127 - form.bias) << form.mantissa)
    subnormal = tirx.Cast("uint32", tirx.abs(scalar) * _f32(1 / form.step))
    is_subnormal = tirx.abs(scalar) < _f32(form.smallest_normal)
    code = tirx.Select(is_subnormal, subnormal, normal)
    if form.infinity is not None:
        code = tirx.Select(tirx.EQ(magnitude, _u32(0x7F800000)), _u32(form.infinity), code)
    code = code | ((bits >> _u32(31)) << _u32(7))
    code = tirx.Select(tirx.isnan(scalar), _u32(form.nan), code)
    return tirx.reinterpret(dtype, tirx.Cast("uint8", code))


def _u32(value: int) -> Expr:
    return tirx.const(value, "uint32")


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


@dataclasses.dataclass(frozen=True)
class ScalarOp:
    """The properties of an operation that scalar rules use."""

    dtype: str  # of the result
    op: Any
    same_operands: bool = False  # x op x: TVM must not simplify it as if x were never NaN
    in_reduction: bool = False  # whose order is free, and so is which of two zeros it keeps


ScalarRule = Callable[..., Expr]


@dataclasses.dataclass(frozen=True)
class ScalarEntry:
    """A rule and roughly how many additions it costs (decides what is computed twice)."""

    rule: ScalarRule
    cost: int = 1


SCALAR_RULES: dict[str, ScalarEntry] = {}


def scalar_rule(*names: str, cost: int = 1) -> Callable[[ScalarRule], ScalarRule]:
    """Registers the rule of one or more operations."""

    def register(rule: ScalarRule) -> ScalarRule:
        for name in names:
            SCALAR_RULES[name] = ScalarEntry(rule, cost)
        return rule

    return register


def apply_scalar(name: str, s: Scope, op: ScalarOp, *operands: Expr) -> Expr:
    """Applies the rule of ``name``, computing narrow floats in 32 bits and rounding once."""
    entry = SCALAR_RULES[name]
    if name in _EXACT_IN_ANY_DTYPE:
        return s.let(entry.rule(s, op, *operands))
    operands = tuple(widen(s, x) for x in operands)
    if op.dtype not in NARROW:
        return s.let(entry.rule(s, op, *operands))
    wide = s.let(entry.rule(s, dataclasses.replace(op, dtype="float32"), *operands))
    return narrow(s, wide, op.dtype)


_EXACT_IN_ANY_DTYPE = ("stablehlo.convert", "stablehlo.select")


def widen(s: Scope, x: Expr) -> Expr:
    """Returns a float16 as float32, everything else as it is."""
    if isinstance(x, tirx.FloatImm):
        return tirx.const(x.value, "float32" if dtype_of(x) == "float16" else dtype_of(x))
    return s.let(tirx.Cast("float32", x)) if dtype_of(x) == "float16" else x


def narrow(s: Scope, x: Expr, dtype: str) -> Expr:
    """Rounds a float32 to a narrow float, as it is held in a scope."""
    return s.let(tirx.Cast(dtype, x) if dtype == "float16" else round_narrow(s, x, dtype))


def visible_zero(x: Expr) -> Expr:
    """Hides a literal zero from TVM, which takes 0 * x for 0 and x + 0 for x; LLVM sees it."""
    if isinstance(x, tirx.FloatImm) and x.value == 0:
        bits = bits_of(dtype_of(x))
        minus_zero = tirx.reinterpret(dtype_of(x), tirx.const(1 << (bits - 1), f"uint{bits}"))
        return minus_zero if math.copysign(1.0, x.value) < 0 else tirx.abs(minus_zero)
    return x


def unsigned(x: Expr, bits: int) -> Expr:
    """Returns an integer's bits as an unsigned integer."""
    dtype = f"uint{bits}"
    if isinstance(x, tirx.IntImm):
        return literal(int(x.value) % (1 << bits), dtype)
    if dtype_of(x) != f"int{bits}":
        return tirx.Cast(dtype, x)
    # TVM refuses to convert what it finds to be a negative constant; LLVM sees through this.
    one = tirx.const(1, f"int{bits}")
    upper = (x >> one) & tirx.const((1 << (bits - 1)) - 1, f"int{bits}")
    return (tirx.Cast(dtype, upper) << tirx.const(1, dtype)) | tirx.Cast(dtype, x & one)


Bounds = tuple[float, float]
_ANY: Bounds = (-math.inf, math.inf)
_DEPTH = 12  # definitions that are looked through
_MOST = ("LT", "LE")
_LEAST = ("GT", "GE")


def bounds(s: Scope, x: Expr, depth: int = _DEPTH) -> Bounds:
    """Finds the ends of what `x` may be, unless it is no number.

    Returns the least and the largest value, infinities where nothing is known after `depth`
    operations.
    """
    x = s.value(x)
    if isinstance(x, tirx.FloatImm):
        return (x.value, x.value) if math.isfinite(x.value) else _ANY
    if depth == 0:
        return _ANY
    if isinstance(x, tirx.Mul):
        return _product_bounds(*(bounds(s, part, depth - 1) for part in (x.a, x.b)))
    if isinstance(x, tirx.Div):
        parts = [bounds(s, part, depth - 1) for part in (x.a, x.b)]
        return (0.0, math.inf) if min(low for low, _ in parts) >= 0 else _ANY
    if isinstance(x, tirx.Select):
        return _selected(s, x, depth)
    name = str(x.op.name) if hasattr(x, "op") and hasattr(x.op, "name") else ""
    # A root of what is below zero is no number.
    return (0.0, math.inf) if name in ("tirx.fabs", "tirx.sqrt") else _ANY


def _product_bounds(a: Bounds, b: Bounds) -> Bounds:
    # Zero times infinity is no number, and zero is the end that such a product comes near to.
    ends = [0.0 if 0 in pair else math.prod(pair) for pair in itertools.product(a, b)]
    return min(ends), max(ends)


def _selected(s: Scope, x: tirx.Select, depth: int) -> Bounds:
    """Bounds a selection; one that compares what it selects is a minimum or a maximum."""
    low, high = (bounds(s, part, depth - 1) for part in (x.true_value, x.false_value))
    test = s.value(x.condition)
    kind = type(test).__name__
    if kind in (*_MOST, *_LEAST) and test.a.same_as(x.true_value) and test.b.same_as(x.false_value):
        keep = min if kind in _MOST else max
        return keep(low[0], high[0]), keep(low[1], high[1])
    return min(low[0], high[0]), max(low[1], high[1])
