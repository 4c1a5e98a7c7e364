"""Eight-bit floats: TVM stores them but converts them wrongly, so their bits are taken apart here.

A scope holds an eight-bit float as the float32 of its value, as it does bfloat16.
"""

from __future__ import annotations

import dataclasses

from tvm import tirx
from tvm.tirx import Expr


@dataclasses.dataclass(frozen=True)
class Format:
    """How an eight-bit float is laid out."""

    mantissa: int  # bits
    bias: int
    largest: float
    has_infinity: bool

    @property
    def smallest_normal(self) -> float:
        """The least magnitude with a full mantissa."""
        return 2.0 ** (1 - self.bias)


FORMATS = {
    "float8_e4m3fn": Format(3, 7, 448.0, has_infinity=False),
    "float8_e5m2": Format(2, 15, 57344.0, has_infinity=True),
}


def decode(element: Expr, kind: Format) -> Expr:
    """Return the value of an eight-bit float as a float32."""
    raw = tirx.Cast("uint32", tirx.reinterpret("uint8", element))
    sign = (raw & _bits(0x80)) << _bits(24)
    magnitude = raw & _bits(0x7F)
    rebias = (127 - kind.bias) << 23
    normal = (magnitude << _bits(23 - kind.mantissa)) + _bits(rebias)
    step = kind.smallest_normal * 2.0**-kind.mantissa
    tiny = tirx.Cast("float32", magnitude) * tirx.const(step, "float32")
    value = tirx.Select(
        magnitude < _bits(1 << kind.mantissa), tirx.reinterpret("uint32", tiny), normal
    )
    if kind.has_infinity:
        value = tirx.Select(magnitude == _bits(_infinity(kind)), _bits(0x7F800000), value)
    value = tirx.Select(magnitude > _bits(_largest(kind)), _bits(0x7FC00000), value)
    return tirx.reinterpret("float32", value | sign)


def encode(value: Expr, kind: Format, dtype: str) -> Expr:
    """Return a float32 that the format represents as an eight-bit float."""
    raw = tirx.reinterpret("uint32", value)
    sign = (raw >> _bits(24)) & _bits(0x80)
    magnitude = raw & _bits(0x7FFFFFFF)
    normal = (magnitude >> _bits(23 - kind.mantissa)) - _bits((127 - kind.bias) << kind.mantissa)
    scale = 2.0**kind.mantissa / kind.smallest_normal
    absolute = tirx.reinterpret("float32", magnitude)
    is_tiny = absolute < tirx.const(kind.smallest_normal, "float32")
    in_range = tirx.Select(is_tiny, absolute, tirx.const(0.0, "float32"))
    tiny = tirx.Cast("uint32", in_range * tirx.const(scale, "float32"))
    code = tirx.Select(is_tiny, tiny, normal)
    if kind.has_infinity:
        code = tirx.Select(magnitude == _bits(0x7F800000), _bits(_infinity(kind)), code)
    code = tirx.Select(magnitude > _bits(0x7F800000), _bits(0x7F), code)
    return tirx.reinterpret(dtype, tirx.Cast("uint8", code | sign))


def _largest(kind: Format) -> int:
    """The code of the largest magnitude: what is above it is NaN."""
    return _infinity(kind) if kind.has_infinity else 0x7E


def _infinity(kind: Format) -> int:
    return 0x7F >> kind.mantissa << kind.mantissa


def _bits(value: int) -> Expr:
    return tirx.const(value, "uint32")
