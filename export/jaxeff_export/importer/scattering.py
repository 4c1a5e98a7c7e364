"""scatter and select_and_scatter: updates are applied one after the other, in order."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from tvm import relax, tirx
from tvm.tirx import Expr, Stmt

from .attributes import integers, padding
from .emitter import Emitter, rule
from .graph import Node
from .loops import Array, Block, every, index, kernel, loop, when
from .regions import evaluate_region
from .scalar_comparison import negation


@rule("stablehlo.scatter")
def _scatter(e: Emitter, node: Node) -> Sequence[relax.Expr]:
    count = len(node.results)
    operands, updates = node.operands[:count], node.operands[count + 1 :]
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

    def body(block: Block, reads: list[Array], writes: list[Array]) -> None:
        inputs, starts, news = reads[:count], reads[count], reads[count + 1 :]
        block.add(copied(inputs, writes))

        def apply(inner: Block, point: list[Expr]) -> None:
            at: list[Expr] = [index(0)] * len(shape)
            for k, d in enumerate(index_map):
                component = list(point)
                if vector_dim < len(starts.shape):
                    component.insert(vector_dim, index(k))
                at[d] = inner.let(tirx.Cast("int64", starts(*component)))
            for d, b in zip(batching, indices_batching, strict=True):
                at[d] = point[b if b < vector_dim else b - 1]
            inside = [
                tirx.all(at[d] >= 0, at[d] <= index(shape[d] - extents[d])) for d in index_map
            ]

            def update(window: Block, offset: list[Expr]) -> None:
                place, source = list(at), list(offset)
                for d, o in zip(window_dims, offset, strict=True):
                    place[d] = at[d] + o if d in index_map else o
                for d, p in zip(scatter_dims, point, strict=True):
                    source.insert(d, p)
                combine(
                    window,
                    node.op.regions[0],
                    [x(*place) for x in writes] + [x(*source) for x in news],
                    writes,
                    place,
                )

            window_shape = [update_shape[d] for d in update_window_dims]
            inner.add(when(every(inside), lambda b: b.add(loop(window_shape, update))))

        block.add(loop([update_shape[d] for d in scatter_dims], apply))

    return kernel(e, "scatter", node.operands, [r.type for r in node.results], body)


def combine(
    block: Block,
    region: ir.Region,
    arguments: Sequence[Expr],
    results: Sequence[Array],
    place: Sequence[Expr],
) -> None:
    """Apply a region to scalars and write what it returns."""
    values = evaluate_region(region, block, [block.let(x) for x in arguments])
    block.add(*(x.set(v, *place) for x, v in zip(results, values, strict=True)))


def copied(sources: Sequence[Array], targets: Sequence[Array]) -> Stmt:
    """Copy tensors of one shape."""

    def copy(block: Block, at: list[Expr]) -> None:
        block.add(*(y.set(x(*at), *at) for x, y in zip(sources, targets, strict=True)))

    return loop(targets[0].shape, copy)


@rule("stablehlo.select_and_scatter")
def _select_and_scatter(e: Emitter, node: Node) -> Sequence[relax.Expr]:
    operand, source, _ = node.operands
    shape = operand.type.shape
    ones = [1] * len(shape)
    window = integers(node.op, "window_dimensions", ones)
    strides = integers(node.op, "window_strides", ones)
    low = [before for before, _ in padding(node.op, len(shape))]
    select, scatter = node.op.regions

    def body(block: Block, reads: list[Array], writes: list[Array]) -> None:
        x, news, init = reads
        (y,) = writes
        block.add(loop(shape, lambda inner, at: inner.add(y.set(init(), *at))))

        def apply(inner: Block, point: list[Expr]) -> None:
            corner = [inner.let(i * s - lo) for i, s, lo in zip(point, strides, low, strict=True)]
            found = inner.variable(tirx.const(False, "bool"), "found")
            best = inner.variable(x(*[index(0)] * len(shape)), "best")
            place = [inner.variable(index(0), "place") for _ in shape]

            def visit(visited: Block, offset: list[Expr]) -> None:
                at = [c + o for c, o in zip(corner, offset, strict=True)]
                inside = [
                    tirx.all(i >= 0, i < index(n))
                    for i, n, w, s, lo in zip(at, shape, window, strides, low, strict=True)
                    if (w, s, lo) != (1, 1, 0)
                ]
                visited.add(when(every(inside), lambda b: consider(b, at)))

            def consider(seen: Block, at: list[Expr]) -> None:
                new = seen.let(x(*at))
                (keep,) = evaluate_region(select, seen, [best(), new])
                take = tirx.Or(negation(found()), negation(keep))
                chosen = [p.set(i) for p, i in zip(place, at, strict=True)]
                update = [best.set(new), found.set(tirx.const(True, "bool")), *chosen]
                seen.add(when(take, lambda b: b.add(*update)))

            def scattered(b: Block) -> None:
                at = [p() for p in place]
                combine(b, scatter, [y(*at), news(*point)], writes, at)

            inner.add(loop(window, visit), when(found(), scattered))

        block.add(loop(source.type.shape, apply))

    return kernel(e, "select_and_scatter", node.operands, [node.result.type], body)
