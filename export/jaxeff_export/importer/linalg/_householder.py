"""Householder reflections, by LAPACK's conventions: geqrf, orgqr, gehrd, sytrd.

A reflection is ``I - tau * v @ v.T`` with ``v[0] = 1``. The rest of ``v`` is stored where it made
zeros; ``tau = 0`` where there was nothing to do.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import CodeBuilder, Emitter, Index, View, rule
from jaxeff_export.importer.reading import HloNode, backend_integer


@rule("custom_call @lapack_sgeqrf_ffi", "custom_call @lapack_dgeqrf_ffi")
def _geqrf(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    *batch, rows, columns = node.results[0].type.shape

    def body(code: CodeBuilder, matrices: View, factors: View, taus: View) -> None:
        row = code.local(matrices.dtype, columns)
        with code.loops(batch) as at:
            a, tau = factors.at(*at), taus.at(*at)
            code.copy(matrices.at(*at), a, (rows, columns))
            with code.loop(min(rows, columns)) as k:
                v = a.T.at(k).shifted(k + 1)
                reflector(code, a.at(k, k), v, rows - k - 1, tau.at(k))
                rest = a.shifted(k, k + 1)
                reflect(code, rest, (rows - k - 1, columns - k - 1), v, tau[k], row)

    return e.kernel(body, node, name="geqrf")


@rule("custom_call @lapack_sorgqr_ffi", "custom_call @lapack_dorgqr_ffi")
def _orgqr(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    *batch, rows, columns = node.result.type.shape
    count = node.operands[1].type.shape[-1]

    def body(code: CodeBuilder, matrices: View, taus: View, products: View) -> None:
        row = code.local(matrices.dtype, columns)
        with code.loops(batch) as at:
            a, tau, q = matrices.at(*at), taus.at(*at), products.at(*at)
            identity(code, q, (rows, columns))
            with code.loop(count) as step:
                # Last to first: reflection k finds an identity before row and column k.
                k = count - 1 - step
                v = a.T.at(k).shifted(k + 1)
                reflect(code, q.shifted(k, k), (rows - k - 1, columns - k), v, tau[k], row)

    return e.kernel(body, node, name="orgqr")


@rule("custom_call @lapack_sgehrd_ffi", "custom_call @lapack_dgehrd_ffi")
def _gehrd(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    *batch, n, _ = node.results[0].type.shape
    low, high = backend_integer(node.op, "low") - 1, backend_integer(node.op, "high")

    def body(code: CodeBuilder, matrices: View, factors: View, taus: View, infos: View) -> None:
        row = code.local(matrices.dtype, n)
        with code.loops(batch) as at:
            a, tau = factors.at(*at), taus.at(*at)
            code.copy(matrices.at(*at), a, (n, n))
            infos.at(*at)[()] = tirx.const(0, "int32")
            with code.loop(n - 1) as k:
                tau[k] = tirx.const(0, a.dtype)
            with code.loop(high - 1, low) as k:
                # H A H: from the right on rows up to `high`, from the left on later columns.
                # Outside of low..high the matrix is triangular already (gebal).
                v, tail = a.T.at(k).shifted(k + 2), high - k - 2
                reflector(code, a.at(k + 1, k), v, tail, tau.at(k))
                reflect(code, a.T.shifted(k + 1, 0), (tail, high), v, tau[k], row)
                reflect(code, a.shifted(k + 1, k + 1), (tail, n - k - 1), v, tau[k], row)

    return e.kernel(body, node, name="gehrd")


@rule("custom_call @lapack_ssytrd_ffi", "custom_call @lapack_dsytrd_ffi")
def _sytrd(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    lower = backend_integer(node.op, "uplo") == ord("L")
    *batch, n, _ = node.results[0].type.shape

    def body(code: CodeBuilder, matrices: View, *results: View) -> None:
        work = code.local(matrices.dtype, n, n)
        with code.loops(batch) as at:
            factors, d, e, tau, info = (view.at(*at) for view in results)
            code.copy(matrices.at(*at), factors, (n, n))
            info[()] = tirx.const(0, "int32")
            if not lower:  # the same from the other end
                factors = factors.map(lambda i, j: (n - 1 - i, n - 1 - j))
                d = d.map(lambda i: (n - 1 - i,))
                e, tau = (x.map(lambda i: (n - 2 - i,)) for x in (e, tau))
            with code.loops((n, n)) as (i, j):
                work[i, j] = tirx.if_then_else(i >= j, factors[i, j], factors[j, i])
            tridiagonalize(code, work, n, d, e, tau)
            with code.loop(n) as i, code.loop(i + 1) as j:
                factors[i, j] = work[i, j]

    return e.kernel(body, node, name="sytrd")


def tridiagonalize(code: CodeBuilder, a: View, n: int, d: View, e: View, tau: View) -> None:
    """Reduces a symmetric matrix to the diagonal ``d`` and the off-diagonal ``e``.

    The reflections are left below the diagonal of ``a``.
    """
    row = code.local(a.dtype, n)
    with code.loop(n - 1) as k:
        v, size = a.T.at(k).shifted(k + 2), n - k - 1
        reflector(code, a.at(k + 1, k), v, size - 1, tau.at(k))
        # From the left and, transposed, from the right, on the full block: twice the work of
        # sytd2's rank-two update of one triangle, but rows stay contiguous.
        rest = a.shifted(k + 1, k + 1)
        reflect(code, rest, (size - 1, size), v, tau[k], row)
        reflect(code, rest.T, (size - 1, size), v, tau[k], row)
        e[k] = a[k + 1, k]
    with code.loop(n) as k:
        d[k] = a[k, k]


def reflector(code: CodeBuilder, first: View, rest: View, length: Index, tau: View) -> None:
    """Finds the reflection that maps a vector to a multiple of the first unit vector.

    ``first`` is overwritten by that multiple, ``rest`` by the reflection.
    """
    # float64 holds the squares of float32 without overflow, which saves LAPACK's rescaling.
    squares, norm = code.local("float64"), code.local(first.dtype)
    zero = tirx.const(0, first.dtype)
    squares[()] = tirx.const(0, "float64")
    with code.loop(length) as i:
        x = tirx.Cast("float64", rest[i])
        squares[()] = squares[()] + x * x
    tau[()] = zero
    # Nothing to clear: tau = 0 makes the reflection the identity.
    with code.when(squares[()] != tirx.const(0, "float64")):
        alpha = tirx.Cast("float64", first[()])
        norm[()] = tirx.Cast(first.dtype, tirx.sqrt(squares[()] + alpha * alpha))
        # The opposite sign of the first element: first - norm adds magnitudes, never cancels.
        with code.when(first[()] >= zero):
            norm[()] = zero - norm[()]
        tau[()] = (norm[()] - first[()]) / norm[()]
        with code.loop(length) as i:
            rest[i] = rest[i] / (first[()] - norm[()])
        first[()] = norm[()]


def reflect(
    code: CodeBuilder, a: View, shape: tuple[Index, Index], v: View, tau: Expr, row: View
) -> None:
    """Reflects the rows of ``a``: the first, and ``shape[0]`` more whose weights are in ``v``.

    ``row`` is room for ``shape[1]`` elements.
    """
    # A - tau * v (v'A) in two passes over A: row = tau * v'A, then the rank-one update.
    # v[0] = 1 isn't stored, so the first row stands apart.
    below, columns = shape
    rest = a.shifted(1, 0)
    with code.loop(columns) as j:
        row[j] = a[0, j]
    with code.loop(below) as i, code.loop(columns) as j:
        row[j] = row[j] + v[i] * rest[i, j]
    with code.loop(columns) as j:
        row[j] = tau * row[j]
        a[0, j] = a[0, j] - row[j]
    with code.loop(below) as i, code.loop(columns) as j:
        rest[i, j] = rest[i, j] - v[i] * row[j]


def identity(code: CodeBuilder, a: View, shape: tuple[int, int]) -> None:
    """Writes the identity matrix."""
    with code.loops(shape) as (i, j):
        one, zero = tirx.const(1, a.dtype), tirx.const(0, a.dtype)
        a[i, j] = tirx.Select(i == j, one, zero)
