"""triangular_solve: substitution, in place of the right-hand sides."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te

from jaxeff_export.importer.emission import CodeBuilder, Emitter, View, accumulator, kernel, rule
from jaxeff_export.importer.linalg._precision import converted
from jaxeff_export.importer.reading import HloNode, attribute, backend_integer, enumerator


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
