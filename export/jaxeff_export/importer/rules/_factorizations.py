"""Factorizations and triangular solves, by LAPACK's conventions.

Cholesky (of which one triangle is read), LU (getrf), tridiagonal systems (gtsv), triangular_solve
and Householder reflections (geqrf, orgqr, gehrd, sytrd); and the rotations that eigenvalues and
singular values are found with. A reflection is ``I - tau * v @ v.T`` with ``v[0] = 1``. The rest of
``v`` is stored where it made zeros; ``tau = 0`` where there was nothing to do.

StableHLO's operations factor matrices of 16-bit floats in 32 bits.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer._elementwise import accumulator
from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloNode, attribute, backend_integer, enumerator
from jaxeff_export.importer._loops import CodeBuilder, Index, View, kernel
from jaxeff_export.importer._scalar_rules import ScalarOp, Scope, apply_scalar, load, store


def converted(tensor: te.Tensor, dtype: str) -> te.Tensor:
    """Returns a tensor in another dtype, rounding as StableHLO's convert does."""
    if str(tensor.dtype) == dtype:
        return tensor

    def element(*index: Expr) -> Expr:
        scope = Scope()
        target = ScalarOp(dtype, None)
        value = apply_scalar("stablehlo.convert", scope, target, load(tensor(*index)))
        return scope.wrap(store(value, dtype))

    return te.compute(tensor.shape, element, name="convert")


@rule("stablehlo.cholesky")
def _cholesky(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    lower = "lower" in node.op.attributes and attribute(node.op, "lower")
    *batch, n, _ = node.result.type.shape
    dtype = accumulator(node.result.type.dtype)
    nan = tirx.const(float("nan"), dtype)

    def body(code: CodeBuilder, matrices: View, factors: View) -> None:
        failed = code.local("int32")
        with code.loops(batch) as at:
            a, factor = matrices.at(*at), factors.at(*at)
            # An upper triangle seen transposed is a lower one: A = U'U with L = U'.
            a, factor = (a, factor) if lower else (a.T, factor.T)
            with code.loops((n, n)) as (i, j):
                factor[i, j] = tirx.if_then_else(i >= j, a[i, j], tirx.const(0, dtype))
            factorize(code, factor, n, failed)
            # XLA's choice for matrices that are not positive definite.
            with code.when(failed[()] != 0), code.loops((n, n)) as (i, j):
                factor[i, j] = nan

    def cholesky(a: te.Tensor) -> te.Tensor:
        factor = kernel(body, [converted(a, dtype)], [(a.shape, dtype)], "cholesky")
        return converted(factor, node.result.type.dtype)

    return [e.te(cholesky, node.operands[0], name="cholesky")]


@rule("custom_call @lapack_spotrf_ffi", "custom_call @lapack_dpotrf_ffi")
def _potrf(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    lower = backend_integer(node.op, "uplo") == ord("L")
    *batch, n, _ = node.results[0].type.shape

    def body(code: CodeBuilder, matrices: View, factors: View, infos: View) -> None:
        with code.loops(batch) as at:
            a, factor = matrices.at(*at), factors.at(*at)
            code.copy(a, factor, (n, n))
            factorize(code, factor if lower else factor.T, n, infos.at(*at))

    return e.kernel(body, node, name="potrf")


def factorize(code: CodeBuilder, a: View, n: int, failed: View) -> None:
    """Writes the lower factor over the lower triangle of ``a``, the rest of which is not read.

    ``failed`` becomes 0, or k + 1 if the leading minor k is not positive definite: columns from
    there on are left as they are.
    """
    failed[()] = tirx.const(0, "int32")
    with code.loop(n) as k, code.when(failed[()] == 0):
        # A pivot that is not positive, or NaN, ends the factorization: potrf's info.
        with code.when(tirx.Or(a[k, k] <= tirx.const(0, a.dtype), tirx.isnan(a[k, k]))):
            failed[()] = tirx.Cast("int32", k + 1)
        with code.when(failed[()] == 0):
            a[k, k] = tirx.sqrt(a[k, k])
            with code.loop(n, k + 1) as i:
                a[i, k] = a[i, k] / a[k, k]
            # Right-looking: the trailing triangle is updated at once, n^3 / 3 operations in all.
            with code.loop(n, k + 1) as i, code.loop(i + 1, k + 1) as j:
                a[i, j] = a[i, j] - a[i, k] * a[j, k]


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


@rule("stablehlo.triangular_solve")
def _triangular_solve(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    return _solve(
        e,
        node,
        left=attribute(node.op, "left_side"),
        lower=attribute(node.op, "lower"),
        transposed=enumerator(node.op, "transpose_a") != "NO_TRANSPOSE",
        unit=attribute(node.op, "unit_diagonal"),
    )


@rule("custom_call @lapack_strsm_ffi", "custom_call @lapack_dtrsm_ffi")
def _trsm(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    return _solve(
        e,
        node,
        left=backend_integer(node.op, "side") == ord("L"),
        lower=backend_integer(node.op, "uplo") == ord("L"),
        transposed=backend_integer(node.op, "trans_x") != ord("N"),
        unit=backend_integer(node.op, "diag") == ord("U"),
    )


def _solve(
    e: Emitter, node: HloNode, *, left: bool, lower: bool, transposed: bool, unit: bool
) -> Sequence[relax.Expr]:
    *batch, rows, columns = node.result.type.shape
    dtype = accumulator(node.result.type.dtype)

    def body(code: CodeBuilder, matrices: View, right: View, solutions: View) -> None:
        with code.loops(batch) as at:
            a, b, x = matrices.at(*at), right.at(*at), solutions.at(*at)
            code.copy(b, x, (rows, columns))
            if left:
                a = a.T if transposed else a
                substitute(code, a, x, (rows, columns), lower=lower != transposed, unit=unit)
            else:  # x a = b, row by row of x: the transposed system
                a = a if transposed else a.T
                with code.loop(rows) as r:
                    row = x.map(lambda k, _: (r, k))
                    substitute(code, a, row, (columns, 1), lower=lower == transposed, unit=unit)

    def solve(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        result = [(node.result.type.shape, dtype)]
        x = kernel(body, [converted(a, dtype), converted(b, dtype)], result, "triangular_solve")
        return converted(x, node.result.type.dtype)

    return [e.te(solve, *node.operands, name="triangular_solve")]


def substitute(
    code: CodeBuilder, a: View, x: View, shape: tuple[int, int], *, lower: bool, unit: bool
) -> None:
    """Writes the solution of ``a @ y = x`` over ``x``, reading only one triangle of ``a``."""
    n, columns = shape
    with code.loop(n) as step:
        k = step if lower else n - 1 - step
        if not unit:
            with code.loop(columns) as j:
                x[k, j] = x[k, j] / a[k, k]
        start, stop = (k + 1, n) if lower else (0, k)
        # A solved row is subtracted from the others at once, so the innermost loop runs along rows.
        with code.loop(stop, start) as i, code.loop(columns) as j:
            x[i, j] = x[i, j] - a[i, k] * x[k, j]


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


class Chase(NamedTuple):
    """A block of a bidiagonal or tridiagonal matrix, and the way that a bulge takes in it.

    Attributes:
        head: the row at one end.
        length: how many rows the other end is away.
        step: 1 if it lies below the head, else -1.
    """

    head: Expr
    length: Expr
    step: Expr


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
