"""scatter and select_and_scatter: updates are applied one after the other, in order."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from tvm import relax, tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import (
    CodeBuilder,
    Emitter,
    Index,
    View,
    evaluate_region,
    int64,
    rule,
)
from jaxeff_export.importer.reading import HloNode, integers, padding
from jaxeff_export.importer.scalar import negation


@rule("stablehlo.scatter")
def _scatter(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    count = len(node.results)
    operands, updates = node.operands[:count], node.operands[count + 1 :]
    start_rank = len(node.operands[count].type.shape)
    if updates[0].type.size == 0:
        return [e.tensor(operand) for operand in operands]
    numbers = stablehlo.ScatterDimensionNumbers(node.op.attributes["scatter_dimension_numbers"])
    shape, update_shape = operands[0].type.shape, updates[0].type.shape
    update_window_dims = list(numbers.update_window_dims)
    scatter_dims = [d for d in range(len(update_shape)) if d not in update_window_dims]
    batching = list(numbers.input_batching_dims)
    indices_batching = list(numbers.scatter_indices_batching_dims)
    dropped = {*numbers.inserted_window_dims, *batching}
    window_dims = [d for d in range(len(shape)) if d not in dropped]
    extents = [1] * len(shape)
    for d, u in zip(window_dims, update_window_dims, strict=True):
        extents[d] = update_shape[u]
    index_map = list(numbers.scattered_dims_to_operand_dims)
    vector_dim = numbers.index_vector_dim

    def body(code: CodeBuilder, *views: View) -> None:
        inputs, starts = views[:count], views[count]
        news, writes = views[count + 1 : 2 * count + 1], views[2 * count + 1 :]
        for x, y in zip(inputs, writes, strict=True):
            code.copy(x, y, shape)
        with code.loops([update_shape[d] for d in scatter_dims]) as point:
            at: list[Expr] = [int64(0)] * len(shape)
            for k, d in enumerate(index_map):
                component: list[Index] = list(point)
                if vector_dim < start_rank:
                    component.insert(vector_dim, k)
                # Not clamped, unlike a gather's: what sticks out is dropped below.
                at[d] = code.let(tirx.Cast("int64", starts[*component]))
            for d, b in zip(batching, indices_batching, strict=True):
                at[d] = point[b if b < vector_dim else b - 1]
            inside = [
                tirx.all(at[d] >= 0, at[d] <= int64(shape[d] - extents[d])) for d in index_map
            ]
            window = [update_shape[d] for d in update_window_dims]
            # A window that leaves the operand anywhere is dropped as a whole.
            with code.when(*inside), code.loops(window) as offset:
                place, source = list(at), list(offset)
                for d, o in zip(window_dims, offset, strict=True):
                    place[d] = at[d] + o if d in index_map else o
                for d, p in zip(scatter_dims, point, strict=True):
                    source.insert(d, p)
                old, new = [y[*place] for y in writes], [x[*source] for x in news]
                _combine(code, node.op.regions[0], [*old, *new], writes, place)

    return e.kernel(body, node, name="scatter")


def _combine(
    code: CodeBuilder,
    region: ir.Region,
    arguments: Sequence[Expr],
    results: Sequence[View],
    place: Sequence[Expr],
) -> None:
    """Applies a region to scalars and writes its results."""
    values = evaluate_region(region, code, [code.let(x) for x in arguments])
    for y, value in zip(results, values, strict=True):
        y[*place] = value


@rule("stablehlo.select_and_scatter")
def _select_and_scatter(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    operand, source, _ = node.operands
    shape = operand.type.shape
    ones = [1] * len(shape)
    window = integers(node.op, "window_dimensions", ones)
    strides = integers(node.op, "window_strides", ones)
    low = [before for before, _ in padding(node.op, len(shape))]
    select, scatter = node.op.regions

    def body(code: CodeBuilder, x: View, news: View, init: View, y: View) -> None:
        with code.loops(shape) as everywhere:
            y[*everywhere] = init[()]
        with code.loops(source.type.shape) as point:
            # Positions in the padding are never chosen, so a window's best starts undefined.
            corner = [code.let(i * s - lo) for i, s, lo in zip(point, strides, low, strict=True)]
            found = code.variable(tirx.const(False, "bool"))
            best = code.variable(x[(0,) * len(shape)])
            place = [code.variable(int64(0)) for _ in shape]
            with code.loops(window) as offset:
                at = [c + o for c, o in zip(corner, offset, strict=True)]
                inside = [
                    tirx.all(i >= 0, i < int64(n))
                    for i, n, w, s, lo in zip(at, shape, window, strides, low, strict=True)
                    if (w, s, lo) != (1, 1, 0)
                ]
                with code.when(*inside):
                    new = code.let(x[*at])
                    (keep,) = evaluate_region(select, code, [best[()], new])
                    # select(best, new) keeps the best: of equal elements the first one wins.
                    with code.when(tirx.Or(negation(found[()]), negation(keep))):
                        best[()] = new
                        found[()] = tirx.const(True, "bool")
                        for p, i in zip(place, at, strict=True):
                            p[()] = i
            with code.when(found[()]):
                target = [p[()] for p in place]
                _combine(code, scatter, [y[*target], news[*point]], [y], target)

    return e.kernel(body, node, name="select_and_scatter")
