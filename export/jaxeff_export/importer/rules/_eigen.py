"""Symmetric eigenvalue problems (syevd): Householder tridiagonalization, then implicit QL.

Shifts, directions and rotations are chosen as LAPACK chooses them for matrices of up to 25 rows,
so that eigenvectors come out with the same signs. For larger ones LAPACK divides and conquers:
there vectors agree up to their signs.
"""

from collections.abc import Sequence

import numpy as np
from tvm import relax, tirx
from tvm.tirx import Expr

from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloNode, backend_integer
from jaxeff_export.importer._loops import CodeBuilder, View
from jaxeff_export.importer.rules import _factorizations as factorizations

_SWEEPS = 30  # per row, before the iteration is said to fail


@rule("custom_call @lapack_ssyevd_ffi", "custom_call @lapack_dsyevd_ffi")
def _syevd(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    lower = backend_integer(node.op, "uplo") == ord("L")
    *batch, n, _ = node.results[0].type.shape
    dtype = node.results[0].type.dtype

    def body(code: CodeBuilder, matrices: View, vectors: View, values: View, infos: View) -> None:
        work, row = code.local(dtype, n, n), code.local(dtype, n)
        off, tau = code.local(dtype, n), code.local(dtype, n)
        with code.loops(batch) as at:
            a, z, d, info = (view.at(*at) for view in (matrices, vectors, values, infos))
            with code.loops((n, n)) as (i, j):
                inside = (i >= j) if lower else (i <= j)
                work[i, j] = tirx.if_then_else(inside, a[i, j], a[j, i])
            # sytrd reduces an upper triangle from its last column: the same steps on
            # reversed indices. The reflections then act on the reversed rows of z.
            reduced, diagonal, beside, back = work, d, off, z
            if not lower:  # from the other end
                reduced = work.map(lambda i, j: (n - 1 - i, n - 1 - j))
                diagonal = d.map(lambda i: (n - 1 - i,))
                beside = off.map(lambda i: (n - 2 - i,))
                back = z.map(lambda i, j: (n - 1 - i, j))
            factorizations.tridiagonalize(code, reduced, n, diagonal, beside, tau)
            factorizations.identity(code, z, (n, n))
            diagonalize(code, d, off, z, n, info)
            # T = Q'AQ, so A's vectors are Q z: the reflections are applied last to first.
            with code.loop(n - 1) as step:
                k = n - 2 - step
                v = reduced.T.at(k).shifted(k + 2)
                factorizations.reflect(code, back.shifted(k + 1, 0), (n - k - 2, n), v, tau[k], row)

    return e.kernel(body, node, name="syevd")


def diagonalize(code: CodeBuilder, d: View, e: View, z: View, n: int, info: View) -> None:
    """Finds the ascending eigenvalues of a tridiagonal matrix, and multiplies ``z`` by vectors.

    ``d`` is the diagonal, which they overwrite, and ``e`` the off-diagonal. ``info`` becomes 1 if
    the iteration does not converge, else 0.
    """
    limits = np.finfo(d.dtype)
    epsilon, tiny = (tirx.const(float(x), d.dtype) for x in (limits.eps / 2, limits.tiny))
    zero, no = tirx.const(0, "int64"), tirx.const(False, "bool")
    start, head, goal, step, end, length, sweeps = (code.local("int64") for _ in range(7))

    def link(k: Expr) -> Expr:  # where the off-diagonal between k and k + step is
        return tirx.min(k, k + step[()])

    # steqr neglects off-diagonals below eps * sqrt(|d[k] * d[k + 1]|), squared to save the root.
    def linked(k: Expr) -> Expr:  # and whether it counts
        return e[k] * e[k] > epsilon * epsilon * tirx.abs(d[k]) * tirx.abs(d[k + 1]) + tiny

    start[()] = zero
    sweeps[()] = tirx.const(n * _SWEEPS + 1, "int64")
    with code.loop_while(tirx.And(start[()] < n, sweeps[()] > 0)):
        # The next block ends before the first negligible off-diagonal.
        head[()] = start[()]
        goal[()] = start[()]
        step[()] = zero + 1
        with code.loop_while(tirx.if_then_else(goal[()] < n - 1, linked(goal[()]), no)):
            goal[()] = goal[()] + 1
        start[()] = goal[()] + 1
        # steqr works towards the end with the smaller entry: QL from above, else QR from below.
        with code.when(tirx.abs(d[goal[()]]) < tirx.abs(d[head[()]])):
            code.exchange(head, goal)
            step[()] = zero - 1
        # A block from head to goal, whose eigenvalues converge one by one, at the head.
        with code.loop_while(tirx.And((goal[()] - head[()]) * step[()] >= 0, sweeps[()] > 0)):
            end[()] = head[()]
            with code.loop_while(tirx.if_then_else(end[()] != goal[()], linked(link(end[()])), no)):
                end[()] = end[()] + step[()]
            length[()] = (end[()] - head[()]) * step[()]
            with code.when(length[()] > 1):
                chase = factorizations.Chase(head[()], length[()], step[()])
                _sweep(code, d, e, z, n, chase)
                sweeps[()] = sweeps[()] - 1
            with code.when(length[()] == 1):
                _solve_pair(code, d, e, z, n, link(head[()]))
            with code.when(length[()] <= 1):
                head[()] = head[()] + (length[()] + 1) * step[()]
    info[()] = tirx.Cast("int32", sweeps[()] <= 0)
    with code.loop(n) as i, code.when(tirx.isnan(d[i])):
        info[()] = tirx.const(1, "int32")
    _sort(code, d, z, n)


def _sweep(
    code: CodeBuilder, d: View, e: View, z: View, n: int, chase: factorizations.Chase
) -> None:
    """Chases a bulge from ``head + length * step`` to the head, with Wilkinson's shift."""
    head, length, step = chase
    c, s, g, p, r = (code.local(d.dtype) for _ in range(5))
    one, two = tirx.const(1, d.dtype), tirx.const(2, d.dtype)
    first = e[tirx.min(head, head + step)]
    # Wilkinson's shift: of the first two rows, the eigenvalue closer to d[head].
    g[()] = (d[head + step] - d[head]) / (two * first)
    r[()] = factorizations.signed(tirx.sqrt(g[()] * g[()] + one), g[()])
    g[()] = d[head + length * step] - d[head] + first / (g[()] + r[()])
    s[()] = one
    c[()] = one
    p[()] = tirx.const(0, d.dtype)
    # steqr's recurrences: g and p carry the bulge on, so only the band is stored.
    with code.loop(length) as back:
        k = head + (length - 1 - back) * step
        near, far = e.at(tirx.min(k, k + step)), e.at(tirx.min(k + step, k + 2 * step))
        f, b = code.let(s[()] * near[()]), code.let(c[()] * near[()])
        factorizations.rotation(code, g[()], f, c, s, r)
        with code.when(back > 0):
            far[()] = r[()]
        g[()] = d[k + step] - p[()]
        r[()] = (d[k] - g[()]) * s[()] + two * c[()] * b
        p[()] = s[()] * r[()]
        d[k + step] = g[()] + p[()]
        g[()] = c[()] * r[()] - b
        factorizations.rotate(code, z, n, k + step, k, c[()], s[()])
    d[head] = d[head] - p[()]
    e[tirx.min(head, head + step)] = g[()]


def _solve_pair(code: CodeBuilder, d: View, e: View, z: View, n: int, k: Expr) -> None:
    """Diagonalizes rows ``k`` and ``k + 1`` by one rotation; the larger eigenvalue comes first."""
    dtype = d.dtype
    zero, one, half = (tirx.const(x, dtype) for x in (0, 1, 0.5))
    a, b, other = code.let(d[k]), code.let(e[k]), code.let(d[k + 1])
    # LAPACK's laev2. The root of larger magnitude adds terms of one sign; the other follows
    # from the determinant, where a subtraction would cancel.
    total, difference, twice = code.let(a + other), code.let(a - other), code.let(b + b)
    root = code.let(tirx.sqrt(difference * difference + twice * twice))
    swap = code.let(tirx.abs(a) <= tirx.abs(other))
    larger, smaller = tirx.Select(swap, other, a), tirx.Select(swap, a, other)
    down = code.let(total < zero)
    d[k] = half * (total + tirx.Select(down, -root, root))
    product = (larger / d[k]) * smaller - (b / d[k]) * b
    d[k + 1] = tirx.if_then_else(total == zero, -half * root, product)
    left = code.let(difference < zero)
    sum_ = code.let(difference + tirx.Select(left, -root, root))
    steep = code.let(tirx.abs(sum_) > tirx.abs(twice))
    none = code.let(tirx.And(tirx.Not(steep), twice == zero))
    tangent = code.let(tirx.if_then_else(steep, -twice / sum_, -sum_ / twice))
    short = code.let(one / tirx.sqrt(one + tangent * tangent))
    cosine = code.let(tirx.Select(none, one, tirx.Select(steep, tangent * short, short)))
    sine = code.let(tirx.Select(none, zero, tirx.Select(steep, short, tangent * short)))
    same = code.let(tirx.EQ(tirx.Cast("int32", down), tirx.Cast("int32", left)))
    c, s = tirx.Select(same, -sine, cosine), tirx.Select(same, cosine, sine)
    factorizations.rotate(code, z, n, k, k + 1, code.let(c), code.let(s))


def _sort(code: CodeBuilder, d: View, z: View, n: int) -> None:
    """Sorts eigenvalues and their vectors."""
    least = code.local("int64")
    with code.loop(n) as i:
        least[()] = i
        with code.loop(n, i + 1) as j, code.when(d[j] < d[least[()]]):
            least[()] = j
        with code.when(least[()] != i):
            code.exchange(d.at(i), d.at(least[()]))
            code.swap(z.T.at(i), z.T.at(least[()]), n)
