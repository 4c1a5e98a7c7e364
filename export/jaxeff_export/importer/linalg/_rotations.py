"""Plane rotations, by LAPACK's conventions."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import Code, Index, View


def rotation(code: Code, f: Expr, g: Expr, c: View, s: View, r: View) -> None:
    """Finds the rotation that maps (f, g) to (r, 0)."""
    zero, one = tirx.const(0, c.dtype), tirx.const(1, c.dtype)
    # lartg's signs: c is not negative, r has the sign of f. Its rescaling is left out, so entries
    # beyond the root of the largest float overflow.
    f, g = code.let(f), code.let(g)
    norm = code.let(tirx.sqrt(f * f + g * g))
    r[()] = tirx.Select(g == zero, f, tirx.Select(f == zero, norm, signed(norm, f)))
    c[()] = tirx.if_then_else(g == zero, one, tirx.abs(f) / norm)
    s[()] = tirx.if_then_else(g == zero, zero, g / r[()])


def rotate(code: Code, z: View, n: Index, i: Expr, j: Expr, c: Expr, s: Expr) -> None:
    """Rotates columns ``i`` and ``j``."""
    with code.loop(n) as k:
        x, y = code.let(z[k, i]), code.let(z[k, j])
        z[k, i] = c * x + s * y
        z[k, j] = c * y - s * x


def signed(x: Expr, sign: Expr) -> Expr:
    """Gives ``x``, which is positive, the sign of another number."""
    return tirx.Select(sign < tirx.const(0, str(sign.ty.dtype)), -x, x)
