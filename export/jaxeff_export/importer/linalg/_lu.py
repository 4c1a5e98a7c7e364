"""LU factorization and tridiagonal systems, by LAPACK's conventions (getrf, gtsv)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx

from jaxeff_export.importer.emission import CodeBuilder, Emitter, View, rule
from jaxeff_export.importer.reading import HloNode


@rule("custom_call @lapack_sgetrf_ffi", "custom_call @lapack_dgetrf_ffi")
def _getrf(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    *batch, rows, columns = node.results[0].type.shape

    def body(code: CodeBuilder, matrices: View, factors: View, pivots: View, infos: View) -> None:
        choice, largest = code.local("int64"), code.local(matrices.dtype)
        with code.loops(batch) as at:
            a, info = factors.at(*at), infos.at(*at)
            code.copy(matrices.at(*at), a, (rows, columns))
            info[()] = tirx.const(0, "int32")
            with code.loop(min(rows, columns)) as k:
                # The first row of the largest magnitude, as LAPACK's iamax finds it: the factors
                # depend on which of several equal pivots is taken.
                choice[()] = k
                largest[()] = tirx.abs(a[k, k])
                with code.loop(rows, k + 1) as i, code.when(tirx.abs(a[i, k]) > largest[()]):
                    choice[()] = i
                    largest[()] = tirx.abs(a[i, k])
                pivots.at(*at)[k] = tirx.Cast("int32", choice[()] + 1)
                with code.when(choice[()] != k):
                    code.swap(a.at(k), a.at(choice[()]), columns)
                # getrf reports the first zero pivot but goes on; its column is left undivided.
                with code.when(tirx.And(a[k, k] == tirx.const(0, a.dtype), info[()] == 0)):
                    info[()] = tirx.Cast("int32", k + 1)
                nonzero = a[k, k] != tirx.const(0, a.dtype)
                with code.when(nonzero), code.loop(rows, k + 1) as i:
                    a[i, k] = a[i, k] / a[k, k]
                # Right-looking rank-one update: 2 n^3 / 3 operations in all for a square matrix.
                with code.loop(rows, k + 1) as i, code.loop(columns, k + 1) as j:
                    a[i, j] = a[i, j] - a[i, k] * a[k, j]

    return e.kernel(body, node, name="getrf")


@rule("custom_call @lapack_sgtsv_ffi", "custom_call @lapack_dgtsv_ffi")
def _gtsv(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    """Solves by Gaussian elimination with partial pivoting; the factors overwrite the diagonals.

    The diagonals have equal lengths: the first element below and the last above are not used.
    """
    *batch, n, columns = node.results[3].type.shape

    def body(code: CodeBuilder, *views: View) -> None:
        factor, fill = code.local(views[0].dtype), code.local(views[0].dtype)
        zero = tirx.const(0, factor.dtype)
        with code.loops(batch) as at:
            parts = [view.at(*at) for view in views]
            for source, target in zip(parts[:3], parts[4:7], strict=True):
                code.copy(source, target, (n,))
            code.copy(parts[3], parts[7], (n, columns))
            diagonal, above, x, info = parts[5:]
            below = parts[4].shifted(1)  # below[k] is in column k
            info[()] = tirx.const(0, "int32")
            with code.loop(n - 1) as k:
                fill[()] = zero  # what appears two above the diagonal
                # Exchanged rows put one element two above the diagonal, never more.
                with code.when(tirx.abs(below[k]) > tirx.abs(diagonal[k])):
                    code.exchange(diagonal.at(k), below.at(k))
                    code.exchange(above.at(k), diagonal.at(k + 1))
                    code.swap(x.at(k), x.at(k + 1), columns)
                    with code.when(k < n - 2):
                        code.exchange(above.at(k + 1), fill)
                with code.when(tirx.And(diagonal[k] == zero, info[()] == 0)):
                    info[()] = tirx.Cast("int32", k + 1)
                factor[()] = below[k] / diagonal[k]
                diagonal[k + 1] = diagonal[k + 1] - factor[()] * above[k]
                with code.when(k < n - 2):
                    above[k + 1] = above[k + 1] - factor[()] * fill[()]
                with code.loop(columns) as j:
                    x[k + 1, j] = x[k + 1, j] - factor[()] * x[k, j]
                below[k] = fill[()]
            with code.when(tirx.And(diagonal[n - 1] == zero, info[()] == 0)):
                info[()] = tirx.const(n, "int32")
            # Back substitution; `below` holds the second superdiagonal by now, as gtsv returns it.
            with code.loop(n) as step, code.loop(columns) as j:
                k = n - 1 - step
                with code.when(step > 0):
                    x[k, j] = x[k, j] - above[k] * x[k + 1, j]
                with code.when(step > 1):
                    x[k, j] = x[k, j] - below[k] * x[k + 2, j]
                x[k, j] = x[k, j] / diagonal[k]

    return e.kernel(body, node, name="gtsv")
