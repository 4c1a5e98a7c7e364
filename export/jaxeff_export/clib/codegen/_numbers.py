"""C that refuses NaN where arguments are rounded to codes, which have none for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxeff_export.artifact import dtype_of
from jaxeff_export.clib.codegen._rendering import render
from jaxeff_export.clib.objects import CLibraryError

if TYPE_CHECKING:
    from jaxeff_export.clib.codegen._interface import Field
    from jaxeff_export.clib.codegen._sources import Library

# Per dtype the bits without the sign, and infinity's: what is above them is NaN.
_BITS = {
    "float16": ("uint16_t", "0x7fffu", "0x7c00u"),
    "bfloat16": ("uint16_t", "0x7fffu", "0x7f80u"),
    "float32": ("uint32_t", "0x7fffffffu", "0x7f800000u"),
    "float64": ("uint64_t", "0x7fffffffffffffffu", "0x7ff0000000000000u"),
}


def source(library: Library) -> list[str]:
    """Writes the functions that look for NaN, one per dtype of the arguments."""
    dtypes = dict.fromkeys(field.spec.dtype for field in _checked(library))
    return [line for dtype in dtypes for line in _function(dtype, library)]


def checks(library: Library) -> list[str]:
    """Writes the lines of a call that check its arguments for NaN."""
    lines = []
    for field in _checked(library):
        lines += [
            f"    if (has_nan_{field.spec.dtype}(inputs->{field.name}, {field.count}))",
            f"        return {library.upper}_NOT_A_NUMBER;",
        ]
    return lines


def _checked(library: Library) -> list[Field]:
    if not library.rounds_inputs:
        return []
    whole = ("bool", "int", "uint")  # these have no NaN
    return [f for f in library.given if f.count and not f.spec.dtype.startswith(whole)]


def _function(dtype: str, library: Library) -> list[str]:
    """Writes a function that looks for NaN.

    Bits are compared, not floats: no flag of a compiler (``-ffast-math``) changes the result.
    """
    if dtype not in _BITS:
        name = next(f.spec.name for f in library.inputs if f.spec.dtype == dtype)
        raise CLibraryError(
            f"{name} is of dtype {dtype}, which a C library can't look through for NaN, and the "
            "function rounds its data to codes; give it float32"
        )
    kind, magnitude, infinity = _BITS[dtype]
    element = next(f.kind for f in library.inputs if f.spec.dtype == dtype)
    text = render(
        "not_a_number.c",
        dtype=dtype,
        element=element,
        kind=kind,
        size=dtype_of(dtype).itemsize,
        magnitude=magnitude,
        infinity=infinity,
    )
    return text.splitlines()
