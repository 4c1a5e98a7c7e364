"""The floats that scopes hold as float32, and how these are rounded, written and read.

TVM computes with none of them: a bfloat16 cannot be bound to a name, and 8-bit floats are bytes to
most of TVM. So a scope's float32 is always one that the narrow type represents: results are
rounded by ``round_narrow``, written by ``store`` (which is exact) and read by ``load``.

Sharp edge: TVM turns buffers of these types that lie inside a kernel into float32, so ``load`` and
``store`` work on parameters only. Kernels of these types are not fused.
"""

from __future__ import annotations

import dataclasses

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.scalar._numerics import round_to
from jaxeff_export.importer.scalar._scope import Scope, dtype_of


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
