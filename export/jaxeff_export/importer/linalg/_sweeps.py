"""One step of implicit QR on a block of a bidiagonal matrix, by LAPACK's rules (bdsqr, lasv2).

The block goes from row ``head`` to ``head + length * step``, where ``step`` is 1 or -1.
"""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import CodeBuilder, View
from jaxeff_export.importer.linalg._rotations import Sides, rotation, signed


def choose_shift(
    code: CodeBuilder, d: View, e: View, head: Expr, tail: Expr, step: Expr, shift: View
) -> None:
    """Computes the last two rows' smaller singular value, or zero where a shift does not help."""
    dtype = d.dtype
    zero, two = tirx.const(0, dtype), tirx.const(2, dtype)
    before = tail - step
    f, h = code.let(tirx.abs(d[before])), code.let(tirx.abs(d[tail]))
    g = code.let(e[tirx.min(before, tail)])
    # las2: the roots are sigma_1 + sigma_2 and sigma_1 - sigma_2, and f * h is the product,
    # so the smaller value needs no subtraction.
    roots = [tirx.sqrt(x * x + g * g) for x in (f + h, f - h)]
    product = two * tirx.min(f, h) * (tirx.max(f, h) / (roots[0] + roots[1]))
    shift[()] = tirx.if_then_else(tirx.min(f, h) == zero, zero, product)
    first = code.let(tirx.abs(d[head]))
    # bdsqr: in (d - shift)^2 such a shift is below rounding.
    share = code.let(tirx.if_then_else(first > zero, shift[()] / first, zero))
    epsilon = tirx.const(float(np.finfo(dtype).eps) / 2, dtype)
    with code.when(share * share < epsilon):
        shift[()] = zero


def sweep_unshifted(
    code: CodeBuilder, d: View, e: View, sides: Sides, head: Expr, length: Expr, step: Expr
) -> None:
    """Does one step of QR without a shift, which keeps tiny singular values accurate."""
    c, s, r, last_c, last_s = (code.local(d.dtype) for _ in range(5))
    # Demmel and Kahan's zero-shift QR: products and roots of sums of squares, nothing cancels.
    c[()] = tirx.const(1, d.dtype)
    last_c[()] = tirx.const(1, d.dtype)
    last_s[()] = tirx.const(0, d.dtype)
    with code.loop(length) as t:
        k = head + t * step
        rotation(code, d[k] * c[()], e[tirx.min(k, k + step)], c, s, r)
        with code.when(t > 0):
            e[tirx.min(k - step, k)] = last_s[()] * r[()]
        rotation(code, last_c[()] * r[()], d[k + step] * s[()], last_c, last_s, d.at(k))
        sides.rotate_both(step, k, (c, s), (last_c, last_s))
    tail = head + length * step
    h = code.let(d[tail] * c[()])
    d[tail] = h * last_c[()]
    e[tirx.min(tail - step, tail)] = h * last_s[()]


def sweep(
    code: CodeBuilder,
    d: View,
    e: View,
    sides: Sides,
    head: Expr,
    length: Expr,
    step: Expr,
    shift: Expr,
) -> None:
    """Does one step of implicit QR: chases the bulge that the shift makes at the head."""
    f, g, r, c, s, other_c, other_s = (code.local(d.dtype) for _ in range(7))
    one = tirx.const(1, d.dtype)
    first = code.let(d[head])
    # First column of B'B - shift^2 over d: (d^2 - shift^2) / d, without squares that overflow.
    f[()] = (tirx.abs(first) - shift) * (signed(one, first) + shift / first)
    g[()] = e[tirx.min(head, head + step)]
    with code.loop(length) as t:
        k = head + t * step
        near, beyond = tirx.min(k, k + step), tirx.min(k + step, k + 2 * step)
        # Rotating columns clears the bulge above the band; one appears below the diagonal.
        rotation(code, f[()], g[()], c, s, r)
        with code.when(t > 0):
            e[tirx.min(k - step, k)] = r[()]
        f[()] = c[()] * d[k] + s[()] * e[near]
        e[near] = c[()] * e[near] - s[()] * d[k]
        g[()] = s[()] * d[k + step]
        d[k + step] = c[()] * d[k + step]
        # Rotating rows clears that one; the next appears above the band, a step further.
        rotation(code, f[()], g[()], other_c, other_s, d.at(k))
        f[()] = other_c[()] * e[near] + other_s[()] * d[k + step]
        d[k + step] = other_c[()] * d[k + step] - other_s[()] * e[near]
        with code.when(t < length - 1):
            g[()] = other_s[()] * e[beyond]
            e[beyond] = other_c[()] * e[beyond]
        sides.rotate_both(step, k, (c, s), (other_c, other_s))
    tail = head + length * step
    e[tirx.min(tail - step, tail)] = f[()]


def solve_pair(code: CodeBuilder, d: View, e: View, sides: Sides, k: Expr) -> None:
    """Diagonalizes rows ``k`` and ``k + 1``; the larger singular value comes first."""
    dtype = d.dtype
    zero, one, two = (tirx.const(x, dtype) for x in (0, 1, 2))
    f, g, h = code.let(d[k]), code.let(e[k]), code.let(d[k + 1])
    # LAPACK's lasv2, accurate to a few ulps. It wants |f| >= |h|: else the transpose is solved,
    # whose left vectors are the right ones here.
    swap = code.let(tirx.abs(h) > tirx.abs(f))
    big, small = code.let(tirx.Select(swap, h, f)), code.let(tirx.Select(swap, f, h))
    fa, ha = code.let(tirx.abs(big)), code.let(tirx.abs(small))
    epsilon = tirx.const(float(np.finfo(dtype).eps) / 2, dtype)
    steep = code.let(fa < epsilon * tirx.abs(g))  # the off-diagonal is all there is
    # a is sigma_1 / |f|, at least one. The one difference, |f| - |h|, is of given numbers and so
    # loses nothing but its own rounding.
    gap, m = code.let((fa - ha) / fa), code.let(g / big)
    t, mm = code.let(two - gap), code.let(m * m)
    s = code.let(tirx.sqrt(t * t + mm))
    r = code.let(tirx.sqrt(gap * gap + mm))
    a = code.let((s + r) / two)
    plain = (m / (s + t) + m / (r + gap)) * (one + a)
    limit = tirx.Select(big * g < zero, -two, two)
    tangent = code.let(tirx.if_then_else(r + gap == zero, limit, plain))
    length = code.let(tirx.sqrt(tangent * tangent + two * two))
    cr = code.let(tirx.Select(steep, big / g, two / length))
    sr = code.let(tirx.Select(steep, one, tangent / length))
    cl = code.let(tirx.Select(steep, one, (cr + sr * m) / a))
    sl = code.let(tirx.Select(steep, small / g, (small / big) * sr / a))
    right, left = (code.local(dtype), code.local(dtype)), (code.local(dtype), code.local(dtype))
    left[0][()], left[1][()] = tirx.Select(swap, sr, cl), tirx.Select(swap, cr, sl)
    right[0][()], right[1][()] = tirx.Select(swap, sl, cr), tirx.Select(swap, cl, sr)
    # Rotations give sigma_1 this sign; the smaller value's follows from the determinant f * h.
    image = (left[0][()] * f) * right[0][()] + (left[0][()] * g + left[1][()] * h) * right[1][()]
    negative = code.let(image < zero)
    larger = code.let(tirx.Select(steep, tirx.abs(g), fa * a))
    smaller = code.let(tirx.Select(steep, (fa / tirx.abs(g)) * ha, ha / a))
    flipped = code.let(tirx.Select(f * h < zero, -smaller, smaller))
    d[k] = tirx.Select(negative, -larger, larger)
    d[k + 1] = tirx.Select(negative, -flipped, flipped)
    e[k] = zero
    sides.rotate(sides.right, k, k + 1, *right)
    sides.rotate(sides.left, k, k + 1, *left)
