"""Bodies applied in imperative loops: reductions of several operands together, and map.

The operations themselves are in ``reduction``, which leaves to these loops what TVM's own reducers
do not express well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import relax, tirx
from tvm.tirx import Expr

from .emitter import Emitter, rule
from .graph import Node
from .loops import Array, Block, kernel, loop
from .regions import accumulator, evaluate_region
from .scalars import ScalarOp, apply_scalar
from .scope import dtype_of

Source = Callable[[list[Expr], list[Expr]], tuple[Expr | None, list[Expr]]]


def accumulate(
    e: Emitter, node: Node, extents: Sequence[int], source: Source
) -> Sequence[relax.Expr]:
    """Reduce an operation's operands together, one element of the results after the other.

    Args:
        e: where to.
        node: has as many initial values as operands.
        extents: of the loops over what one element of the results is made of.
        source: maps an index of the results and one of those loops to an index of the operands,
            and to the condition that it is in bounds (the initial value is taken if not).

    Returns:
        The results.
    """
    count = len(node.results)
    region = node.op.regions[0]

    def body(block: Block, reads: list[Array], writes: list[Array]) -> None:
        values, starts = reads[:count], reads[count:]

        def element(outer: Block, at: list[Expr]) -> None:
            initial = [outer.let(_converted(outer, x(), accumulator(x.dtype))) for x in starts]
            totals = [outer.variable(x, "total") for x in initial]

            def step(inner: Block, k: list[Expr]) -> None:
                inside, place = source(at, k)
                arguments = [inner.let(total()) for total in totals]
                for x, start in zip(values, initial, strict=True):
                    found = x(*place) if inside is None else _guarded(inner, inside, x, place)
                    new = _converted(inner, found, dtype_of(start))
                    arguments.append(new if inside is None else tirx.Select(inside, new, start))
                results = evaluate_region(region, inner, arguments, wide=True)
                inner.add(*(t.set(r) for t, r in zip(totals, results, strict=True)))

            outer.add(loop(extents, step))
            for y, total in zip(writes, totals, strict=True):
                outer.add(y.set(_converted(outer, total(), y.dtype), *at))

        block.add(loop(node.results[0].type.shape, element))

    name = node.name.rpartition(".")[2]
    return kernel(e, name, node.operands, [r.type for r in node.results], body)


def _guarded(block: Block, inside: Expr, x: Array, place: Sequence[Expr]) -> Expr:
    """Read an element, or some zero where the index is out of bounds."""
    element = x(*place)
    return block.let(tirx.if_then_else(inside, element, tirx.const(0, dtype_of(element))))


def _converted(block: Block, x: Expr, dtype: str) -> Expr:
    """Convert a scalar; to bfloat16, which scopes hold as float32, it is rounded."""
    if dtype_of(x) == dtype:
        return x
    return apply_scalar("stablehlo.convert", block, ScalarOp(dtype, None), x)


@rule("stablehlo.map")
def _map(e: Emitter, node: Node) -> Sequence[relax.Expr]:
    def body(block: Block, reads: list[Array], writes: list[Array]) -> None:
        def element(inner: Block, at: list[Expr]) -> None:
            arguments = [inner.let(x(*at)) for x in reads]
            values = evaluate_region(node.op.regions[0], inner, arguments)
            inner.add(*(y.set(v, *at) for y, v in zip(writes, values, strict=True)))

        block.add(loop(node.result.type.shape, element))

    return kernel(e, "map", node.operands, [node.result.type], body)
