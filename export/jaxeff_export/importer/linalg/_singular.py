"""Singular value decompositions (gesdd): bidiagonalization, then implicit QR.

As for eigenvectors, the steps are those that LAPACK takes when the smaller dimension is up to 25,
so that singular vectors come out with its signs; in larger matrices they agree up to signs.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from jaxeff_export.importer.emission import CodeBuilder, Emitter, View, rule
from jaxeff_export.importer.linalg._bidiagonal import Sides, diagonalize, make_upper
from jaxeff_export.importer.linalg._householder import identity, reflect, reflector
from jaxeff_export.importer.reading import HloNode, backend_integer


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
                identity(code, u, (rows, many if tall else short))
                identity(code, vt.T, (columns, short if tall else many))
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
        reflector(code, a.at(k, k), v, rows - k - 1, taus.at(k))
        rest = a.shifted(k, k + 1)
        reflect(code, rest, (rows - k - 1, columns - k - 1), v, taus[k], row)


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
        reflector(code, a.at(k, k), v, rows - k - 1, taus[0].at(k))
        rest = a.shifted(k, k + 1)
        reflect(code, rest, (rows - k - 1, columns - k - 1), v, taus[0][k], row)
        diagonals[0][k] = a[k, k]
        # From the right, clear row k beyond the superdiagonal; column k stays as it is.
        with code.when(k < columns - 1):
            v = a.at(k).shifted(k + 2)
            reflector(code, a.at(k, k + 1), v, columns - k - 2, taus[1].at(k))
            rest = a.shifted(k + 1, k + 1).T
            reflect(code, rest, (columns - k - 2, rows - k - 1), v, taus[1][k], row)
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
        reflect(code, vectors.shifted(k, 0), (rows - k - 1, columns), v, taus[k], row)
