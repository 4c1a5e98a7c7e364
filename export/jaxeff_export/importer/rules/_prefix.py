"""Windows that reach from an element to the end of its dimension: cumulative sums and the like.

JAX writes these as ``reduce_window`` over the whole dimension, which taken literally is quadratic.
Here every element continues from its neighbour. Sums and products of float32 run in float64, so a
long sum is no less accurate than one that adds in pairs; 16-bit floats are rounded at every step,
as XLA does in windows. Bodies of several operations run in the dtypes of accumulators. Forwards
their results equal those of the literal windows; backwards they combine in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import CodeBuilder, Emitter, View, accumulator, evaluate_region
from jaxeff_export.importer.reading import HloNode, integers, padding
from jaxeff_export.importer.rules._accumulation import converted, widened
from jaxeff_export.importer.scalar import NARROW, ScalarOp, apply_scalar, compare, dtype_of

# Up to so many elements, backward windows of narrow floats are computed literally, like XLA's.
_LITERAL = 64


def running_dimension(node: HloNode) -> tuple[int, bool] | None:
    """Finds the dimension of a running ``reduce_window``, and whether it runs backwards.

    Returns:
        None where the windows are of another form.
    """
    shape = node.operands[0].type.shape
    ones = [1] * len(shape)
    window = integers(node.op, "window_dimensions")
    wide = [d for d, size in enumerate(window) if size != 1]
    others = ("window_strides", "base_dilations", "window_dilations")
    if len(wide) != 1 or any(integers(node.op, name, ones) != ones for name in others):
        return None
    (d,) = wide
    n = shape[d]
    pads = padding(node.op, len(shape))
    if window[d] != n or any(pad != (0, 0) for k, pad in enumerate(pads) if k != d):
        return None
    if pads[d] not in ((n - 1, 0), (0, n - 1)):
        return None
    backwards = pads[d] == (0, n - 1)
    if backwards and n <= _LITERAL and any(r.type.dtype in NARROW for r in node.results):
        return None  # each window is summed forwards, and every sum rounded
    return d, backwards


def emit_running(
    e: Emitter, node: HloNode, operation: str, dimension: int, backwards: bool
) -> Sequence[relax.Expr]:
    """Emits a running sum, product, maximum or minimum, started from the operation's identity."""
    dtype = node.result.type.dtype
    summed = operation in ("stablehlo.add", "stablehlo.multiply")
    wide = ScalarOp("float64" if summed and dtype == "float32" else dtype, None)

    def body(code: CodeBuilder, x: View, start: View, y: View) -> None:
        def advance(total: Expr, new: Expr) -> list[Expr]:
            return [apply_scalar(operation, code, wide, total, converted(code, new, wide.dtype))]

        starts = [converted(code, start[()], wide.dtype)]
        _run(code, node, ([x], [y]), (dimension, backwards), starts, advance)

    return e.kernel(body, node, name=operation.rpartition(".")[2])


def emit_running_body(
    e: Emitter, node: HloNode, dimension: int, backwards: bool, literally: Callable[..., None]
) -> Sequence[relax.Expr]:
    """Emits a window of any body, one pass over the elements if the padding makes no difference.

    That is so if the body makes the initial value of two of them. It is found out at run time,
    since nothing is known of the body; else ``literally(code, views)`` writes every window.
    """
    count = len(node.results)

    def body(code: CodeBuilder, *views: View) -> None:
        reads, writes = views[:count], views[2 * count :]

        def advance(*arguments: Expr) -> list[Expr]:
            wide = [converted(code, x, accumulator(dtype_of(x))) for x in arguments]
            totals, new = wide[:count], wide[count:]
            # A window combines left to right; running backwards, the new element is its leftmost.
            ordered = [*new, *totals] if backwards else [*totals, *new]
            return evaluate_region(
                node.op.regions[0], code, [code.let(x) for x in ordered], wide=True
            )

        starts = [code.variable(x)[()] for x in widened(code, views[count : 2 * count])]
        padded = advance(*starts, *starts)
        same = [compare("EQ", x, y) for x, y in zip(starts, padded, strict=True)]
        is_same = code.let(tirx.all(*same))
        with code.when(is_same):
            _run(code, node, (reads, writes), (dimension, backwards), starts, advance)
        with code.when(tirx.Not(is_same)):
            literally(code, views)

    return e.kernel(body, node, name="running")


def _run(
    code: CodeBuilder,
    node: HloNode,
    views: tuple[Sequence[View], Sequence[View]],
    direction: tuple[int, bool],
    starts: Sequence[Expr],
    advance: Callable[..., Sequence[Expr]],
) -> None:
    """Writes one pass along a dimension: ``advance(*running values, *elements)`` continues it."""
    (reads, writes), (dimension, backwards) = views, direction
    shape = node.results[0].type.shape
    before, n, after = shape[:dimension], shape[dimension], shape[dimension + 1 :]
    # One running value per element of the inner dimensions: the innermost loop is contiguous.
    totals = [code.local(dtype_of(start), *after) for start in starts]
    with code.loops(before) as outer:
        with code.loops(after) as k:
            for total, start in zip(totals, starts, strict=True):
                total[k] = start
        with code.loop(n) as step, code.loops(after) as k:
            at = (*outer, n - 1 - step if backwards else step, *k)
            arguments = [total[k] for total in totals] + [x[at] for x in reads]
            for total, result in zip(totals, advance(*arguments), strict=True):
                total[k] = result
            for y, total in zip(writes, totals, strict=True):
                y[at] = converted(code, total[k], y.dtype)
