"""Indices that only a call tells, kept inside of an array."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import Expr


def clamped(index: Expr, limit: int) -> Expr:
    """Clamps a start index of any integer dtype to [0, limit], as int64."""
    if limit <= 0:
        return tirx.const(0, "int64")
    if str(index.ty.dtype) == "uint64":  # beyond int64 it is beyond the limit too
        index = tirx.Select(index > tirx.const(limit, "uint64"), tirx.const(limit, "uint64"), index)
    wide = tirx.Cast("int64", index)
    return tirx.max(tirx.min(wide, tirx.const(limit, "int64")), tirx.const(0, "int64"))
