"""Plane rotations, by LAPACK's conventions."""

from __future__ import annotations

from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import CodeBuilder, Index, View


def rotation(code: CodeBuilder, f: Expr, g: Expr, c: View, s: View, r: View) -> None:
    """Finds the rotation that maps (f, g) to (r, 0)."""
    zero, one = tirx.const(0, c.dtype), tirx.const(1, c.dtype)
    # lartg's signs: c is not negative, r has the sign of f. Its rescaling is left out, so entries
    # beyond the root of the largest float overflow.
    f, g = code.let(f), code.let(g)
    norm = code.let(tirx.sqrt(f * f + g * g))
    r[()] = tirx.Select(g == zero, f, tirx.Select(f == zero, norm, signed(norm, f)))
    c[()] = tirx.if_then_else(g == zero, one, tirx.abs(f) / norm)
    s[()] = tirx.if_then_else(g == zero, zero, g / r[()])


def rotate(code: CodeBuilder, z: View, n: Index, i: Expr, j: Expr, c: Expr, s: Expr) -> None:
    """Rotates columns ``i`` and ``j``."""
    with code.loop(n) as k:
        x, y = code.let(z[k, i]), code.let(z[k, j])
        z[k, i] = c * x + s * y
        z[k, j] = c * y - s * x


def signed(x: Expr, sign: Expr) -> Expr:
    """Gives ``x``, which is positive, the sign of another number."""
    return tirx.Select(sign < tirx.const(0, str(sign.ty.dtype)), -x, x)


class Sides:
    """The left and right vectors, which rotations multiply."""

    def __init__(self, code: CodeBuilder, left: View, right: View, n: int, wanted: bool):
        self.left, self.right, self.n, self.wanted = left, right, n, wanted
        self._code = code

    def rotate(self, side: View, i: Expr, j: Expr, c: View, s: View) -> None:
        """Rotates columns ``i`` and ``j`` of one side."""
        if self.wanted:
            rotate(self._code, side, self.n, i, j, c[()], s[()])

    def rotate_both(
        self, step: Expr, i: Expr, first: tuple[View, View], second: tuple[View, View]
    ) -> None:
        """Rotates columns ``i`` and ``i + step``: by ``first`` on the right if going down."""
        for going, one, other in ((step > 0, first, second), (step < 0, second, first)):
            with self._code.when(going):
                self.rotate(self.right, i, i + step, *one)
                self.rotate(self.left, i, i + step, *other)
