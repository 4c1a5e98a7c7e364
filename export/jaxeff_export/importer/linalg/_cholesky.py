"""cholesky: the factor of a symmetric matrix of which one triangle is read."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from jaxeff_export.importer.emission import CodeBuilder, Emitter, View, accumulator, kernel, rule
from jaxeff_export.importer.linalg._precision import converted
from jaxeff_export.importer.reading import HloNode, attribute, backend_integer


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
