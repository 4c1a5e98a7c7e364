"""Scalar expressions with named intermediate values.

Every rule for a scalar function writes its intermediates through :meth:`Scope.let`; the whole
computation then becomes one nested ``Let`` that is linear in the number of operations, however
often a value is used again.

Sharp edges of TVM's scalar expressions, handled here and in ``rules`` so that no rule has to:
signed and unsigned 32- and 64-bit arithmetic is marked as never overflowing; a literal is refused,
or becomes another number, where it is converted to a dtype that it doesn't fit (``literal``);
``x != x`` is simplified to false; narrow floats are computed in 32 bits and rounded once
(``narrow_floats``).
"""

from __future__ import annotations

import re

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
    found = re.search(r"\d+", dtype)
    return int(found.group()) if found else 1  # bool


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
