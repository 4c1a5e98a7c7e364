"""Bodies applied in imperative loops: reductions of several operands together, and map.

The operations themselves are in ``reduction``, which uses these loops where TVM's own reducers do
not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import (
    CodeBuilder,
    Emitter,
    View,
    accumulator,
    evaluate_region,
    rule,
)
from jaxeff_export.importer.reading import HloNode
from jaxeff_export.importer.scalar import ScalarOp, apply_scalar, dtype_of

Source = Callable[[Sequence[Expr], Sequence[Expr]], tuple[Expr | None, list[Expr]]]


def accumulate(
    e: Emitter, node: HloNode, extents: Sequence[int], source: Source
) -> Sequence[relax.Expr]:
    """Reduces an operation's operands together, one element of the results after the other.

    Args:
        e: the emitter that the result is written with.
        node: has as many initial values as operands.
        extents: lengths of the loops over the elements that one result is reduced from.
        source: maps an index of the results and one of those loops to an index of the operands,
            and to the condition that it is in bounds (the initial value is taken if not).

    Returns:
        The results.
    """

    def body(code: CodeBuilder, *views: View) -> None:
        fold(code, node, views, extents, source)

    return e.kernel(body, node, name=node.name.rpartition(".")[2])


def fold(
    code: CodeBuilder, node: HloNode, views: Sequence[View], extents: Sequence[int], source: Source
) -> None:
    """Writes the loops of :func:`accumulate`; ``views`` are the node's operands and results."""
    count = len(node.results)
    values, starts, writes = views[:count], views[count : 2 * count], views[2 * count :]
    with code.loops(node.results[0].type.shape) as at:
        initial = widened(code, starts)
        totals = [code.variable(x) for x in initial]
        with code.loops(extents) as k:
            inside, place = source(at, k)
            arguments = [code.let(total[()]) for total in totals]
            for x, start in zip(values, initial, strict=True):
                # A position in the padding is no address: the initial value is taken instead.
                found = x[*place] if inside is None else _guarded(code, inside, x, place)
                new = converted(code, found, dtype_of(start))
                arguments.append(new if inside is None else tirx.Select(inside, new, start))
            results = evaluate_region(node.op.regions[0], code, arguments, wide=True)
            for total, result in zip(totals, results, strict=True):
                total[()] = result
        for y, total in zip(writes, totals, strict=True):
            y[*at] = converted(code, total[()], y.dtype)


def widened(code: CodeBuilder, starts: Sequence[View]) -> list[Expr]:
    """Reads initial values in the dtypes of accumulators."""
    return [code.let(converted(code, x[()], accumulator(x.dtype))) for x in starts]


def _guarded(code: CodeBuilder, inside: Expr, x: View, place: Sequence[Expr]) -> Expr:
    """Reads an element, or some zero where the index is out of bounds."""
    element = x[*place]
    return code.let(tirx.if_then_else(inside, element, tirx.const(0, dtype_of(element))))


def converted(code: CodeBuilder, x: Expr, dtype: str) -> Expr:
    """Converts a scalar; to bfloat16, which scopes hold as float32, it is rounded."""
    if dtype_of(x) == dtype:
        return x
    return apply_scalar("stablehlo.convert", code, ScalarOp(dtype, None), x)


@rule("stablehlo.map")
def _map(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    def body(code: CodeBuilder, *views: View) -> None:
        *reads, y = views
        with code.loops(node.result.type.shape) as at:
            arguments = [code.let(x[*at]) for x in reads]
            (y[*at],) = evaluate_region(node.op.regions[0], code, arguments)

    return e.kernel(body, node, name="map")
