"""sort: a stable merge sort by any comparator, of any number of operands together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from tvm import relax, tirx
from tvm.tirx import Expr

from .attributes import attribute
from .emitter import Emitter, rule
from .graph import Node
from .loops import Array, Block, Variable, index, kernel, loop, repeat
from .regions import called_regions, evaluate_region


@rule("stablehlo.sort")
def _sort(e: Emitter, node: Node) -> Sequence[relax.Expr]:
    rank = len(node.results[0].type.shape)
    if not rank:
        return [e.tensor(operand) for operand in node.operands]
    return _sorted(e, node, attribute(node.op, "dimension") % rank, node.op.regions[0])


@rule("custom_call @ApproxTopK")
def _approx_top_k(e: Emitter, node: Node) -> Sequence[relax.Expr]:
    """An exact answer is an approximate one too. The operands' second half only fills gaps."""
    configuration: Any = node.op.attributes["mhlo.backend_config"]
    (comparator,) = called_regions(node.op)
    return _sorted(e, node, configuration["reduction_dim"].value, comparator)


def _sorted(e: Emitter, node: Node, dimension: int, comparator: ir.Region) -> Sequence[relax.Expr]:
    """Sort operands together; as many of the first elements are kept as the results have."""
    operands = node.operands[: len(node.results)]
    shape = operands[0].type.shape
    length, kept = shape[dimension], node.results[0].type.shape[dimension]

    def body(block: Block, reads: list[Array], writes: list[Array]) -> None:
        # Two halves: each pass merges from one into the other.
        halves = [block.array([2 * length], x.dtype, "halves") for x in reads]

        def sort_row(row: Block, others: list[Expr]) -> None:
            def at(i: Expr) -> list[Expr]:
                return [*others[:dimension], i, *others[dimension:]]

            def enter(inner: Block, i: list[Expr]) -> None:
                inner.add(*(h.set(x(*at(*i)), *i) for h, x in zip(halves, reads, strict=True)))

            row.add(loop([length], enter))
            offset = _merge_passes(row, comparator, halves, length)

            def leave(inner: Block, i: list[Expr]) -> None:
                source = offset() + i[0]
                inner.add(*(y.set(h(source), *at(*i)) for h, y in zip(halves, writes, strict=True)))

            row.add(loop([kept], leave))

        block.add(loop([n for d, n in enumerate(shape) if d != dimension], sort_row))

    return kernel(e, "sort", operands, [r.type for r in node.results], body)


def _merge_passes(
    block: Block, comparator: ir.Region, halves: Sequence[Array], length: int
) -> Variable:
    """Merge sorted runs of doubling width; return where the sorted half begins."""
    end = index(length)
    width = block.variable(index(1), "width")
    source = block.variable(index(0), "source")

    def one_pass(inner: Block) -> None:
        target = inner.let(end - source())

        def one_merge(merge: Block, counters: list[Expr]) -> None:
            low = merge.let(counters[0] * (width() * 2))
            middle = merge.let(tirx.min(low + width(), end))
            high = merge.let(tirx.min(low + width() * 2, end))
            _merge(merge, comparator, halves, (source(), target), (low, middle, high))

        runs = inner.let(tirx.floordiv(end + width() * 2 - 1, width() * 2))
        inner.add(loop([runs], one_merge), width.set(width() * 2), source.set(target))

    block.add(repeat(width() < end, one_pass))
    return source


def _merge(
    block: Block,
    comparator: ir.Region,
    halves: Sequence[Array],
    offsets: tuple[Expr, Expr],
    bounds: tuple[Expr, Expr, Expr],
) -> None:
    """Merge two neighbouring runs; of equal elements the left one comes first."""
    source, target = offsets
    low, middle, high = bounds
    left, right = block.variable(low, "left"), block.variable(middle, "right")
    out = block.variable(target + low, "out")

    def take(inner: Block, i: Expr) -> None:
        inner.add(*(h.set(h(source + i), out()) for h in halves), out.set(out() + 1))

    def take_first(inner: Block) -> None:
        pairs = [x for h in halves for x in (h(source + right()), h(source + left()))]
        (precedes,) = evaluate_region(comparator, inner, pairs)
        step = inner.let(tirx.Cast("int64", precedes))
        take(inner, tirx.Select(step > 0, right(), left()))
        inner.add(right.set(right() + step), left.set(left() + 1 - step))

    def take_rest(inner: Block, rest: Variable) -> None:
        take(inner, rest())
        inner.add(rest.set(rest() + 1))

    block.add(
        repeat(tirx.And(left() < middle, right() < high), take_first),
        repeat(left() < middle, lambda inner: take_rest(inner, left)),
        repeat(right() < high, lambda inner: take_rest(inner, right)),
    )
