"""Singular value decompositions (gesdd): bidiagonalization, then implicit QR.

As for eigenvectors, the steps are those that LAPACK takes (bdsqr, lasv2) when the smaller dimension
is up to 25, so that singular vectors come out with its signs; in larger matrices they agree up to
signs. A step works on a block from row ``head`` to ``head + length * step``, where ``step`` is 1 or
-1.
"""

from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx
from tvm.tirx import Expr

from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloNode, backend_integer
from jaxeff_export.importer._loops import CodeBuilder, View
from jaxeff_export.importer.rules import _factorizations as factorizations
from jaxeff_export.importer.rules._factorizations import rotate


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
    code: CodeBuilder, d: View, e: View, sides: Sides, chase: factorizations.Chase
) -> None:
    """Does one step of QR without a shift, which keeps tiny singular values accurate."""
    head, length, step = chase
    c, s, r, last_c, last_s = (code.local(d.dtype) for _ in range(5))
    # Demmel and Kahan's zero-shift QR: products and roots of sums of squares, nothing cancels.
    c[()] = tirx.const(1, d.dtype)
    last_c[()] = tirx.const(1, d.dtype)
    last_s[()] = tirx.const(0, d.dtype)
    with code.loop(length) as t:
        k = head + t * step
        factorizations.rotation(code, d[k] * c[()], e[tirx.min(k, k + step)], c, s, r)
        with code.when(t > 0):
            e[tirx.min(k - step, k)] = last_s[()] * r[()]
        factorizations.rotation(
            code, last_c[()] * r[()], d[k + step] * s[()], last_c, last_s, d.at(k)
        )
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
    chase: factorizations.Chase,
    shift: Expr,
) -> None:
    """Does one step of implicit QR: chases the bulge that the shift makes at the head."""
    head, length, step = chase
    f, g, r, c, s, other_c, other_s = (code.local(d.dtype) for _ in range(7))
    one = tirx.const(1, d.dtype)
    first = code.let(d[head])
    # First column of B'B - shift^2 over d: (d^2 - shift^2) / d, without squares that overflow.
    f[()] = (tirx.abs(first) - shift) * (factorizations.signed(one, first) + shift / first)
    g[()] = e[tirx.min(head, head + step)]
    with code.loop(length) as t:
        k = head + t * step
        near, beyond = tirx.min(k, k + step), tirx.min(k + step, k + 2 * step)
        # Rotating columns clears the bulge above the band; one appears below the diagonal.
        factorizations.rotation(code, f[()], g[()], c, s, r)
        with code.when(t > 0):
            e[tirx.min(k - step, k)] = r[()]
        f[()] = c[()] * d[k] + s[()] * e[near]
        e[near] = c[()] * e[near] - s[()] * d[k]
        g[()] = s[()] * d[k + step]
        d[k + step] = c[()] * d[k + step]
        # Rotating rows clears that one; the next appears above the band, a step further.
        factorizations.rotation(code, f[()], g[()], other_c, other_s, d.at(k))
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


def make_upper(code: CodeBuilder, d: View, e: View, sides: Sides) -> None:
    """Turns a lower bidiagonal matrix into an upper one by rotations from the left."""
    c, s, r = (code.local(d.dtype) for _ in range(3))
    with code.loop(sides.n - 1) as k:
        factorizations.rotation(code, d[k], e[k], c, s, r)
        d[k] = r[()]
        e[k] = s[()] * d[k + 1]
        d[k + 1] = c[()] * d[k + 1]
        sides.rotate(sides.left, k, k + 1, c, s)


def diagonalize(code: CodeBuilder, d: View, e: View, sides: Sides, info: View) -> None:
    """Finds the singular values of an upper bidiagonal matrix, descending, and their vectors.

    ``info`` becomes 1 if the iteration does not converge, else 0.
    """
    n = sides.n
    iteration = _Iteration(code, d, e, sides)
    bottom, budget = iteration.bottom, iteration.budget
    with code.loop_while(tirx.And(bottom[()] > 0, budget[()] > 0)):
        iteration.find_block()
        length, top = iteration.length, iteration.top
        # Two rows have a solution in closed form; one row is a singular value already.
        with code.when(length[()] == 1):
            solve_pair(code, d, e, sides, top[()])
        with code.when(length[()] <= 1):
            bottom[()] = top[()] - 1
        with code.when(length[()] > 1):
            iteration.choose_direction()
            head, tail, final = iteration.ends()
            iteration.split(head, tail, final)
            # A new zero splits the block: its lower part is found first.
            with code.when(iteration.has_split[()] == 0):
                iteration.sweep(head, tail, final)
    info[()] = tirx.Cast("int32", budget[()] <= 0)
    # Comparisons with NaN are false, so NaN looks converged and has to be reported here.
    with code.loop(n) as k, code.when(tirx.isnan(d[k])):
        info[()] = tirx.const(1, "int32")
    _sort(code, d, sides)


class _Iteration:
    """The implicit QR iteration on one bidiagonal matrix: what sweeps leave for the next.

    The rows `top` to `bottom` are the block at work: the last whose off-diagonal has no zero.
    Sweeps go down (`step` is 1) or up (-1) through it. `has_split` says whether a zero split the
    block, and `budget` how many rotations are left.
    """

    def __init__(self, code: CodeBuilder, d: View, e: View, sides: Sides) -> None:
        dtype, n = d.dtype, sides.n
        self.code, self.d, self.e, self.sides = code, d, e, sides
        self.epsilon, tiny = float(np.finfo(dtype).eps) / 2, float(np.finfo(dtype).tiny)
        # bdsqr's relative tolerance for singular values; eps is half the spacing of floats at one.
        self.tolerance = max(10.0, min(100.0, self.epsilon**-0.125)) * self.epsilon
        self.zero, self.relative = tirx.const(0, dtype), tirx.const(self.tolerance, dtype)
        self.none, self.one = tirx.const(0, "int64"), tirx.const(1, "int64")
        self.threshold, self.mu, self.least, self.largest, self.shift = (
            code.local(dtype) for _ in range(5)
        )
        self.top, self.bottom, self.step, self.length, self.budget, self.has_split = (
            code.local("int64") for _ in range(6)
        )
        self.last_top, self.last_bottom = code.local("int64"), code.local("int64")
        # bdsqr's floor, MAXITR * n^2 times the least normal number: the threshold can't underflow.
        self._set_threshold(tirx.const(6.0 * n * n * tiny, dtype))
        self.bottom[()] = tirx.const(n - 1, "int64")
        # No block yet: the first one chooses its direction.
        self.last_top[()] = self.none - 1
        self.last_bottom[()] = self.none - 1
        self.step[()] = self.one
        # A sweep costs its length; bdsqr gives up after MAXITR = 6 times n^2 in all.
        self.budget[()] = tirx.const(6 * n * n + 1, "int64")

    def _set_threshold(self, floor: Expr) -> None:
        """Sets below what an off-diagonal is zero: the tolerance times the least value's bound."""
        code, d, e, n = self.code, self.d, self.e, self.sides.n
        # min(mu) / sqrt(n) bounds the least singular value from below: 1 / min(mu) is a norm of
        # the inverse (Demmel and Kahan, SIAM J. Sci. Stat. Comput. 11(5), 1990).
        self._start_bound(d[0])
        with code.loop(n, 1) as k, code.when(self.least[()] > self.zero):
            self._bound(k, e[k - 1])
        self.threshold[()] = tirx.max(
            self.relative * self.least[()] / tirx.const(n**0.5, d.dtype), floor
        )

    def _start_bound(self, first: Expr) -> None:
        self.mu[()] = tirx.abs(first)
        self.least[()] = self.mu[()]

    def _bound(self, k: Expr, beside: Expr) -> None:
        """Extends the lower bound of the least singular value to row ``k``."""
        mu, least = self.mu, self.least
        mu[()] = tirx.abs(self.d[k]) * (mu[()] / (mu[()] + tirx.abs(beside)))
        least[()] = tirx.min(least[()], mu[()])

    def find_block(self) -> None:
        """Finds the block above `bottom`, up to the first negligible off-diagonal; zeroes that."""
        # Rows after `bottom` have converged.
        code, d, e, top, largest = self.code, self.d, self.e, self.top, self.largest
        top[()] = self.bottom[()]
        largest[()] = tirx.abs(d[self.bottom[()]])
        linked = tirx.abs(e[top[()] - 1]) > self.threshold[()]
        # A choice instead of a conjunction: above the first row there is no entry to read.
        with code.loop_while(tirx.if_then_else(top[()] > 0, linked, tirx.const(False, "bool"))):
            top[()] = top[()] - 1
            largest[()] = tirx.max(largest[()], tirx.abs(d[top[()]]))
            largest[()] = tirx.max(largest[()], tirx.abs(e[top[()]]))
        with code.when(top[()] > 0):
            e[top[()] - 1] = self.zero
        self.length[()] = self.bottom[()] - top[()]

    def choose_direction(self) -> None:
        """Chooses the direction for a new block; a known one keeps its own."""
        code, d, top, bottom = self.code, self.d, self.top, self.bottom
        new = tirx.Or(top[()] > self.last_bottom[()], bottom[()] < self.last_top[()])
        with code.when(new):
            # Chase the bulge from the larger end: values converge at the smaller.
            down = tirx.abs(d[top[()]]) >= tirx.abs(d[bottom[()]])
            self.step[()] = tirx.Select(down, self.one, self.none - 1)

    def ends(self) -> tuple[Expr, Expr, Expr]:
        """Computes the rows where sweeps begin and end, and the last off-diagonal on the way."""
        code, going = self.code, self.step[()]
        head = code.let(tirx.Select(going > 0, self.top[()], self.bottom[()]))
        tail = code.let(head + self.length[()] * going)
        return head, tail, tirx.min(tail - going, tail)

    def split(self, head: Expr, tail: Expr, final: Expr) -> None:
        """Zeroes an off-diagonal that no singular value depends on, and sets `has_split`."""
        # Demmel and Kahan's criterion, in the direction of the chase: an off-diagonal below the
        # tolerance times mu changes no singular value by more than the tolerance.
        code, d, e, has_split, going = self.code, self.d, self.e, self.has_split, self.step[()]
        has_split[()] = self.none
        with code.when(tirx.abs(e[final]) <= self.relative * tirx.abs(d[tail])):
            e[final] = self.zero
            has_split[()] = self.one
        self._start_bound(d[head])
        with code.loop(self.length[()]) as t, code.when(has_split[()] == 0):
            k = head + t * going
            link = tirx.min(k, k + going)
            with code.when(tirx.abs(e[link]) <= self.relative * self.mu[()]):
                e[link] = self.zero
                has_split[()] = self.one
            with code.when(has_split[()] == 0):
                self._bound(k + going, e[link])

    def sweep(self, head: Expr, tail: Expr, final: Expr) -> None:
        """Does one step of QR on the block, with a shift where that costs no accuracy."""
        code, d, e, shift, going = self.code, self.d, self.e, self.shift, self.step[()]
        length, dtype = self.length, self.d.dtype
        self.last_top[()] = self.top[()]
        self.last_bottom[()] = self.bottom[()]
        self.budget[()] = self.budget[()] - length[()]
        choose_shift(code, d, e, head, tail, going, shift)
        # A shift would cost the least values of such a block their relative accuracy.
        ratio = tirx.const(self.sides.n * self.tolerance, dtype) * (
            self.least[()] / self.largest[()]
        )
        bound = max(self.epsilon, 0.01 * self.tolerance)
        chase = factorizations.Chase(head, length[()], going)
        with code.when(ratio <= tirx.const(bound, dtype)):
            shift[()] = self.zero
        with code.when(shift[()] == self.zero):
            sweep_unshifted(code, d, e, self.sides, chase)
        with code.when(shift[()] != self.zero):
            sweep(code, d, e, self.sides, chase, shift[()])
        with code.when(tirx.abs(e[final]) <= self.threshold[()]):
            e[final] = self.zero


def _sort(code: CodeBuilder, d: View, sides: Sides) -> None:
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


@rule("custom_call @lapack_sgesdd_ffi", "custom_call @lapack_dgesdd_ffi")
def _gesdd(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    wanted = backend_integer(node.op, "mode") != ord("N")
    *batch, rows, columns = node.results[0].type.shape
    dtype = node.results[0].type.dtype
    long, short = max(rows, columns), min(rows, columns)
    tall = rows >= columns
    many = max(node.results[2].type.shape[-1], node.results[3].type.shape[-2])
    # gesdd's crossover (MNTHR): for long matrices, a QR factorization first is less work.
    qr_first = long >= short * 11 // 6
    upper = tall or qr_first  # else what is reduced is the transpose

    def body(code: CodeBuilder, matrices: View, overwritten: View, *results: View) -> None:
        work, square = code.local(dtype, long, short), code.local(dtype, short, short)
        off, row = code.local(dtype, short), code.local(dtype, long)
        taus, right_taus, qr_taus = (code.local(dtype, short) for _ in range(3))
        with code.loops(batch) as at:
            a = matrices.at(*at)
            d, u, vt, info = (view.at(*at) for view in results)
            code.copy(a, overwritten.at(*at), (rows, columns))
            code.copy(a if tall else a.T, work, (long, short))
            reduced, height = work, long
            if qr_first:
                _triangularize(code, work, (long, short), qr_taus, row)
                # Only R is reduced further; Q's reflections, below it, are applied last.
                reduced, height = square if tall else square.T, short
                _copy_triangle(code, work, square, short)
            _bidiagonalize(code, reduced, (height, short), (d, off), (taus, right_taus), row)
            sides = Sides(code, u, vt.T, short, wanted)
            if wanted:
                factorizations.identity(code, u, (rows, many if tall else short))
                factorizations.identity(code, vt.T, (columns, short if tall else many))
            # bdsqr iterates on upper bidiagonal matrices; rotations for that go into the vectors.
            if not upper:
                make_upper(code, d, off, sides)
            diagonalize(code, d, off, sides, info)
            if wanted:
                # A = Q (U S V') P': reflections of the bidiagonalization first, those of QR last.
                first, second = (u, vt.T) if upper else (vt.T, u)
                size = (height, short if qr_first else many)
                _restore(code, first, size, reduced.T, taus, row, short)
                below = reduced.map(lambda i, j: (i, j + 1))
                size = (short - 1, short)
                _restore(code, second.shifted(1, 0), size, below, right_taus, row, short - 1)
                if qr_first:
                    longer = u if tall else vt.T
                    _restore(code, longer, (long, many), work.T, qr_taus, row, short)

    return e.kernel(body, node, name="gesdd")


def _copy_triangle(code: CodeBuilder, source: View, target: View, n: int) -> None:
    """Copies what is on and above the diagonal: below it are the reflections."""
    with code.loops((n, n)) as (i, j):
        zero = tirx.const(0, source.dtype)
        target[i, j] = tirx.if_then_else(i <= j, source[i, j], zero)


def _triangularize(
    code: CodeBuilder, a: View, shape: tuple[int, int], taus: View, row: View
) -> None:
    rows, columns = shape
    with code.loop(columns) as k:
        v = a.T.at(k).shifted(k + 1)
        factorizations.reflector(code, a.at(k, k), v, rows - k - 1, taus.at(k))
        rest = a.shifted(k, k + 1)
        factorizations.reflect(code, rest, (rows - k - 1, columns - k - 1), v, taus[k], row)


def _bidiagonalize(
    code: CodeBuilder,
    a: View,
    shape: tuple[int, int],
    diagonals: tuple[View, View],
    taus: tuple[View, View],
    row: View,
) -> None:
    """Reduces a tall matrix to upper bidiagonal form by reflections from both sides."""
    rows, columns = shape
    with code.loop(columns) as k:
        # From the left, clear column k below the diagonal.
        v = a.T.at(k).shifted(k + 1)
        factorizations.reflector(code, a.at(k, k), v, rows - k - 1, taus[0].at(k))
        rest = a.shifted(k, k + 1)
        factorizations.reflect(code, rest, (rows - k - 1, columns - k - 1), v, taus[0][k], row)
        diagonals[0][k] = a[k, k]
        # From the right, clear row k beyond the superdiagonal; column k stays as it is.
        with code.when(k < columns - 1):
            v = a.at(k).shifted(k + 2)
            factorizations.reflector(code, a.at(k, k + 1), v, columns - k - 2, taus[1].at(k))
            rest = a.shifted(k + 1, k + 1).T
            factorizations.reflect(code, rest, (columns - k - 2, rows - k - 1), v, taus[1][k], row)
            diagonals[1][k] = a[k, k + 1]


def _restore(
    code: CodeBuilder,
    vectors: View,
    shape: tuple[int, int],
    reflections: View,
    taus: View,
    row: View,
    count: int,
) -> None:
    """Multiplies vectors by ``count`` reflections, whose weights are right of the diagonal."""
    rows, columns = shape
    with code.loop(count) as step:
        k = count - 1 - step
        v = reflections.at(k).shifted(k + 1)
        factorizations.reflect(
            code, vectors.shifted(k, 0), (rows - k - 1, columns), v, taus[k], row
        )
