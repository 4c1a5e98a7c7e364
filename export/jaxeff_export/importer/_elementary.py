"""Rules of rounding, roots and the elementary functions.

Those of float32 are straight-line code that compilers vectorise: LLVM's own ``exp`` and friends
become one library call per element. These are the classic range-reduction-and-polynomial forms
(Cephes, S. Moshier, 1989), accurate to about 2 ulp, with NaN, infinities and signed zeros as IEEE
asks. float64 goes to the C library.

Sharp edge: results below the smallest normal number may be flushed to zero, as XLA's are.
"""

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer._scalar_rules import ScalarOp, Scope, bounds, dtype_of, scalar_rule

_LOG2E = 1.44269504088896341
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
_ROUNDS = 1.5 * 2**23  # floats from here to 2**24 are the integers
_EXP_LEAST, _EXP_MOST = -87.33654, 88.72283  # results between are normal numbers
_EXP_NARROW = 88.0  # 2**n is a number up to here
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
_TANH_ODD = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
_TANH_EVEN = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)


def _f32(value: float) -> Expr:
    return tirx.const(value, "float32")


def _i32(value: int) -> Expr:
    return tirx.const(value, "int32")


def _horner(s: Scope, x: Expr, coefficients: Sequence[float]) -> Expr:
    total = _f32(coefficients[0])
    for c in coefficients[1:]:
        total = s.let(total * x + _f32(c))
    return total


def exp(s: Scope, x: Expr) -> Expr:
    """Computes e**x."""
    shifted = s.let(x * _f32(_LOG2E) + _f32(_ROUNDS))  # its last bits are the nearest integer
    n = s.let(shifted - _f32(_ROUNDS))
    # Cody and Waite: ln 2 in two parts. The high one has nine bits, so n times it is exact and
    # the reduced argument keeps its digits.
    r = s.let(x - n * _f32(_LN2_HIGH))
    r = s.let(r - n * _f32(_LN2_LOW))
    square = s.let(r * r)
    pairs = [s.let(r * _f32(a) + _f32(b)) for a, b in zip(_EXP[::2], _EXP[1::2], strict=True)]
    p = pairs[0]  # pairs shorten the chain, which is what this function takes
    for pair in pairs[1:]:
        p = s.let(p * square + pair)
    p = s.let(p * square + r + _f32(1.0))
    least, most = bounds(s, x)
    # What is no number would lose that where n is added to its exponent, but not as a factor.
    if least > _EXP_LEAST and most < _EXP_NARROW:
        power = (tirx.reinterpret("int32", shifted) << _i32(23)) + _i32(0x3F800000)
        return s.let(p * tirx.reinterpret("float32", power))
    # Added to the exponent of a number next to 1, n reaches 128, which is no factor of its own.
    power = tirx.reinterpret("int32", shifted) << _i32(23)
    scaled = s.let(tirx.reinterpret("float32", tirx.reinterpret("int32", p) + power))
    scaled = s.let(tirx.Select(x < _f32(_EXP_LEAST), _f32(0.0), scaled))
    # What is beyond, or no number, becomes itself and infinity: infinity, or no number.
    return s.let(tirx.Select(x <= _f32(_EXP_MOST), scaled, x + _f32(float("inf"))))


def log(s: Scope, x: Expr) -> Expr:
    """Computes the natural logarithm."""
    # Subnormals have no exponent bits: they are scaled into the normal range first.
    tiny = s.let(x < _f32(1.17549435e-38))
    y = s.let(tirx.Select(tiny, x * _f32(2.0**23), x))
    bits = s.let(tirx.reinterpret("int32", y))
    exponent = s.let((bits >> _i32(23)) - _i32(126) - tirx.Select(tiny, _i32(23), _i32(0)))
    mantissa = s.let(
        tirx.reinterpret("float32", (bits & _i32(0x007FFFFF)) | _i32(0x3F000000))
    )  # in [0.5, 1)
    # m + 1 in [sqrt(1/2), sqrt(2)), the interval of the polynomial, around log's zero.
    small = s.let(mantissa < _f32(0.70710678118))
    e = s.let(tirx.Cast("float32", exponent - tirx.Select(small, _i32(1), _i32(0))))
    m = s.let(tirx.Select(small, mantissa + mantissa, mantissa) - _f32(1.0))
    z = s.let(m * m)
    p = s.let(_horner(s, m, _LOG) * m * z + e * _f32(_LN2_LOW) - z * _f32(0.5))
    value = s.let(m + p + e * _f32(_LN2_HIGH))
    inf = _f32(float("inf"))
    value = tirx.Select(x < inf, value, x)  # +inf and NaN
    value = tirx.Select(tirx.EQ(x, _f32(0.0)), -inf, value)
    return s.let(tirx.Select(x < _f32(0.0), _f32(float("nan")), value))


def log1p(s: Scope, x: Expr) -> Expr:
    """Computes log(1 + x), accurate near zero (Kahan's correction of the rounding of 1 + x)."""
    u = s.let(x + _f32(1.0))
    # d is what was added in fact: log(1 + x) = x * log(u) / d up to rounding.
    d = s.let(u - _f32(1.0))
    tiny = s.let(tirx.EQ(d, _f32(0.0)))
    ratio = s.let(x / tirx.Select(tiny, _f32(1.0), d))
    ratio = s.let(tirx.Select(tirx.isfinite(u), ratio, _f32(1.0)))
    return s.let(tirx.Select(tiny, x, log(s, u) * ratio))


def expm1(s: Scope, x: Expr) -> Expr:
    """Computes exp(x) - 1, which near zero is tanh(x / 2) * (exp(x) + 1)."""
    e = exp(s, x)
    half = s.let(x * _f32(0.5))
    near = s.let(tanh(s, half) * s.let(e + _f32(1.0)))
    far = s.let(e - _f32(1.0))
    return s.let(tirx.Select(tirx.abs(x) < _f32(0.5), near, far))


def tanh(s: Scope, x: Expr) -> Expr:
    """Computes the hyperbolic tangent by XLA's rational function: results agree with XLA's."""
    # XLA's clamp: both saturate at the same argument.
    limit = _f32(7.99881172180175781)
    y = s.let(tirx.Select(x > limit, limit, tirx.Select(x < -limit, -limit, x)))
    z = s.let(y * y)
    # Odd over even polynomial in y^2: the sign is y's, exactly.
    value = s.let(y * _horner(s, z, _TANH_ODD) / _horner(s, z, _TANH_EVEN))
    # tanh x = x - x^3 / 3 + ...: here the second term is below half an ulp of x.
    return s.let(tirx.Select(tirx.abs(x) < _f32(0.0004), x, value))


def logistic(s: Scope, x: Expr) -> Expr:
    """Computes 1 / (1 + exp(-x))."""
    return s.let(_f32(1.0) / (_f32(1.0) + exp(s, s.let(-x))))


@scalar_rule("stablehlo.is_finite")
def _is_finite(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    return tirx.abs(x) < tirx.const(float("inf"), dtype_of(x))


@scalar_rule("stablehlo.round_nearest_afz", cost=4)
def _round_nearest_afz(s: Scope, op: ScalarOp, x: Expr) -> Expr:
    # x - trunc(x) is exact, so ties are told apart; x + 0.5 may round up to an integer.
    integer = s.let(tirx.trunc(x))
    away = s.let(tirx.abs(x - integer) >= tirx.const(0.5, op.dtype))
    one = tirx.const(1, op.dtype)
    step = tirx.Select(x < tirx.const(0, op.dtype), -one, one)
    return tirx.Select(away, integer + step, integer)


def _register_unary(
    name: str, cost: int, in_32_bits: Callable, in_64_bits: Callable | None = None
) -> None:
    @scalar_rule(name, cost=cost)
    def rule(s: Scope, op: ScalarOp, x: Expr) -> Expr:
        return (in_64_bits if in_64_bits and op.dtype != "float32" else in_32_bits)(s, x)


def library(name: str) -> Callable:
    """Calls the C library's function, for either width."""

    def call(s: Scope, *operands: Expr) -> Expr:
        dtype = dtype_of(operands[0])
        symbol = f"{name}f" if dtype == "float32" else name
        return tirx.call_pure_extern(dtype, symbol, *operands)

    return call


_register_unary("stablehlo.floor", 1, lambda s, x: tirx.floor(x))
_register_unary("stablehlo.ceil", 1, lambda s, x: tirx.ceil(x))
_register_unary("stablehlo.round_nearest_even", 2, lambda s, x: tirx.nearbyint(x))
_register_unary("stablehlo.sqrt", 4, lambda s, x: tirx.sqrt(x))
_register_unary("stablehlo.rsqrt", 8, lambda s, x: tirx.const(1, dtype_of(x)) / tirx.sqrt(x))
_register_unary("stablehlo.cbrt", 20, library("cbrt"))
_register_unary("stablehlo.exponential", 12, exp, library("exp"))
_register_unary("stablehlo.exponential_minus_one", 20, expm1, library("expm1"))
_register_unary("stablehlo.log", 16, log, library("log"))
_register_unary("stablehlo.log_plus_one", 24, log1p, library("log1p"))
_register_unary("stablehlo.tanh", 20, tanh, library("tanh"))
_register_unary("stablehlo.sine", 20, library("sin"))
_register_unary("stablehlo.cosine", 20, library("cos"))
_register_unary("stablehlo.tan", 20, library("tan"))
_register_unary(
    "stablehlo.logistic",
    16,
    logistic,
    lambda s, x: tirx.const(1, "float64") / (tirx.const(1, "float64") + library("exp")(s, -x)),
)
scalar_rule("stablehlo.atan2", cost=30)(lambda s, op, a, b: library("atan2")(s, a, b))
