"""The singular values of bidiagonal matrices: implicit QR, by LAPACK's rules (bdsqr)."""

from __future__ import annotations

import numpy as np
from tvm import tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import Code, View
from jaxeff_export.importer.linalg._rotations import rotate, rotation, signed


class Sides:
    """The left and right vectors, which rotations multiply."""

    def __init__(self, code: Code, left: View, right: View, n: int, wanted: bool):
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


def make_upper(code: Code, d: View, e: View, sides: Sides) -> None:
    """Turns a lower bidiagonal matrix into an upper one by rotations from the left."""
    c, s, r = (code.local(d.dtype) for _ in range(3))
    with code.loop(sides.n - 1) as k:
        rotation(code, d[k], e[k], c, s, r)
        d[k] = r[()]
        e[k] = s[()] * d[k + 1]
        d[k + 1] = c[()] * d[k + 1]
        sides.rotate(sides.left, k, k + 1, c, s)


def diagonalize(code: Code, d: View, e: View, sides: Sides, info: View) -> None:
    """Finds the singular values of an upper bidiagonal matrix, descending, and their vectors.

    ``info`` becomes 1 if the iteration does not converge, else 0.
    """
    dtype, n = d.dtype, sides.n
    epsilon, tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)
    # bdsqr's relative tolerance for singular values; eps is half the spacing of floats at one.
    tolerance = max(10.0, min(100.0, epsilon**-0.125)) * epsilon
    zero, relative = tirx.const(0, dtype), tirx.const(tolerance, dtype)
    threshold, mu, least, largest, shift = (code.local(dtype) for _ in range(5))
    top, bottom, step, length, budget, found = (code.local("int64") for _ in range(6))
    last_top, last_bottom = code.local("int64"), code.local("int64")
    none, one = tirx.const(0, "int64"), tirx.const(1, "int64")

    def shrink(k: Expr, beside: Expr) -> None:  # mu bounds the least singular value so far
        mu[()] = tirx.abs(d[k]) * (mu[()] / (mu[()] + tirx.abs(beside)))
        least[()] = tirx.min(least[()], mu[()])

    # min(mu) / sqrt(n) bounds the least singular value from below: 1 / min(mu) is a norm of the
    # inverse (Demmel and Kahan, SIAM J. Sci. Stat. Comput. 11(5), 1990).
    mu[()] = tirx.abs(d[0])
    least[()] = mu[()]
    with code.loop(n, 1) as k, code.when(least[()] > zero):
        shrink(k, e[k - 1])
    floor = tirx.const(6.0 * n * n * tiny, dtype)
    # Off-diagonals below the tolerance times that bound can be zeroed. bdsqr's floor, MAXITR * n^2
    # times the least normal number, keeps the threshold from underflowing.
    threshold[()] = tirx.max(relative * least[()] / tirx.const(n**0.5, dtype), floor)
    bottom[()] = tirx.const(n - 1, "int64")
    last_top[()] = none - 1
    last_bottom[()] = none - 1
    step[()] = one
    # A sweep costs its length; bdsqr gives up after MAXITR = 6 times n^2 in all.
    budget[()] = tirx.const(6 * n * n + 1, "int64")
    with code.loop_while(tirx.And(bottom[()] > 0, budget[()] > 0)):
        # Rows after `bottom` have converged. The block top..bottom ends above at the first
        # negligible off-diagonal.
        top[()] = bottom[()]
        largest[()] = tirx.abs(d[bottom[()]])
        linked = tirx.abs(e[top[()] - 1]) > threshold[()]
        with code.loop_while(tirx.if_then_else(top[()] > 0, linked, tirx.const(False, "bool"))):
            top[()] = top[()] - 1
            largest[()] = tirx.max(largest[()], tirx.abs(d[top[()]]))
            largest[()] = tirx.max(largest[()], tirx.abs(e[top[()]]))
        with code.when(top[()] > 0):
            e[top[()] - 1] = zero
        length[()] = bottom[()] - top[()]
        with code.when(length[()] == 1):
            # Two rows have a closed form.
            _solve_pair(code, d, e, sides, top[()])
        with code.when(length[()] <= 1):
            bottom[()] = top[()] - 1
        with code.when(length[()] > 1):
            # A new block: chase the bulge from the larger end; values converge at the smaller.
            with code.when(tirx.Or(top[()] > last_bottom[()], bottom[()] < last_top[()])):
                down = tirx.abs(d[top[()]]) >= tirx.abs(d[bottom[()]])
                step[()] = tirx.Select(down, one, none - 1)
            going = step[()]
            head = code.let(tirx.Select(going > 0, top[()], bottom[()]))
            tail = code.let(head + length[()] * going)
            final = tirx.min(tail - going, tail)
            # Demmel and Kahan's criterion, in the direction of the chase: an off-diagonal below
            # the tolerance times mu changes no singular value by more than the tolerance.
            found[()] = none
            with code.when(tirx.abs(e[final]) <= relative * tirx.abs(d[tail])):
                e[final] = zero
                found[()] = one
            mu[()] = tirx.abs(d[head])
            least[()] = mu[()]
            with code.loop(length[()]) as t, code.when(found[()] == 0):
                k = head + t * going
                link = tirx.min(k, k + going)
                with code.when(tirx.abs(e[link]) <= relative * mu[()]):
                    e[link] = zero
                    found[()] = one
                with code.when(found[()] == 0):
                    shrink(k + going, e[link])
            with code.when(found[()] == 0):
                last_top[()] = top[()]
                last_bottom[()] = bottom[()]
                budget[()] = budget[()] - length[()]
                _choose_shift(code, d, e, head, tail, going, shift)
                # A shift would cost the least values of such a block their relative accuracy.
                ratio = tirx.const(n * tolerance, dtype) * (least[()] / largest[()])
                with code.when(ratio <= tirx.const(max(epsilon, 0.01 * tolerance), dtype)):
                    shift[()] = zero
                with code.when(shift[()] == zero):
                    _sweep_unshifted(code, d, e, sides, head, length[()], going)
                with code.when(shift[()] != zero):
                    _sweep(code, d, e, sides, head, length[()], going, shift[()])
                with code.when(tirx.abs(e[final]) <= threshold[()]):
                    e[final] = zero
    info[()] = tirx.Cast("int32", budget[()] <= 0)
    # Comparisons with NaN are false, so NaN looks converged and has to be reported here.
    with code.loop(n) as k, code.when(tirx.isnan(d[k])):
        info[()] = tirx.const(1, "int32")
    _sort(code, d, sides)


def _choose_shift(
    code: Code, d: View, e: View, head: Expr, tail: Expr, step: Expr, shift: View
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


def _sweep_unshifted(
    code: Code, d: View, e: View, sides: Sides, head: Expr, length: Expr, step: Expr
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


def _sweep(
    code: Code, d: View, e: View, sides: Sides, head: Expr, length: Expr, step: Expr, shift: Expr
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


def _solve_pair(code: Code, d: View, e: View, sides: Sides, k: Expr) -> None:
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


def _sort(code: Code, d: View, sides: Sides) -> None:
    """Makes singular values positive, then descending."""
    n = sides.n
    least = code.local("int64")
    # LAPACK's convention: bdsqr negates right vectors, bdsdc, for a single row, the left one.
    flipped = sides.left if n == 1 else sides.right
    with code.loop(n) as k, code.when(d[k] < tirx.const(0, d.dtype)):
        d[k] = -d[k]
        if sides.wanted:
            with code.loop(n) as i:
                flipped[i, k] = -flipped[i, k]
    with code.loop(n) as back:
        # bdsqr's selection sort: among equal values, another sort would order vectors otherwise.
        end = n - 1 - back
        least[()] = tirx.const(0, "int64")
        with code.loop(end + 1) as j, code.when(d[j] <= d[least[()]]):
            least[()] = j
        with code.when(least[()] != end):
            code.exchange(d.at(end), d.at(least[()]))
            for side in (sides.left, sides.right) if sides.wanted else ():
                code.swap(side.T.at(end), side.T.at(least[()]), n)
