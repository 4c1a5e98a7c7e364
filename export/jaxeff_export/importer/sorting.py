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
from .loops import Code, View, int64
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
    count = len(node.results)
    shape = node.operands[0].type.shape
    length, kept = shape[dimension], node.results[0].type.shape[dimension]

    def body(code: Code, *views: View) -> None:
        reads, writes = views[:count], views[-count:]
        # Two halves: each pass merges from one into the other.
        halves = [code.local(x.dtype, 2 * length) for x in reads]
        with code.loops([n for d, n in enumerate(shape) if d != dimension]) as others:

            def row(x: View) -> View:
                return x.map(lambda i: (*others[:dimension], i, *others[dimension:]))

            for x, half in zip(reads, halves, strict=True):
                code.copy(row(x), half, (length,))
            start = _merge_passes(code, comparator, halves, length)
            for half, y in zip(halves, writes, strict=True):
                code.copy(half.shifted(start), row(y), (kept,))

    return e.kernel(body, node, name="sort")


def _merge_passes(code: Code, comparator: ir.Region, halves: Sequence[View], length: int) -> Expr:
    """Merge sorted runs of doubling width; return where the sorted half begins."""
    end = int64(length)
    width, source = code.variable(int64(1)), code.variable(int64(0))
    with code.loop_while(width[()] < end):
        target = code.let(end - source[()])
        with code.loop(tirx.floordiv(end + width[()] * 2 - 1, width[()] * 2)) as run:
            low = code.let(run * (width[()] * 2))
            middle = code.let(tirx.min(low + width[()], end))
            high = code.let(tirx.min(low + width[()] * 2, end))
            _merge(code, comparator, halves, (source[()], target), (low, middle, high))
        width[()] = width[()] * 2
        source[()] = target
    return source[()]


def _merge(
    code: Code,
    comparator: ir.Region,
    halves: Sequence[View],
    offsets: tuple[Expr, Expr],
    bounds: tuple[Expr, Expr, Expr],
) -> None:
    """Merge two neighbouring runs; of equal elements the left one comes first."""
    source, target = offsets
    low, middle, high = bounds
    left, right, out = code.variable(low), code.variable(middle), code.variable(target + low)

    def take(i: Expr) -> None:
        for half in halves:
            half[out[()]] = half[source + i]
        out[()] = out[()] + 1

    with code.loop_while(tirx.And(left[()] < middle, right[()] < high)):
        pairs = [x for half in halves for x in (half[source + right[()]], half[source + left[()]])]
        (precedes,) = evaluate_region(comparator, code, pairs)
        step = code.let(tirx.Cast("int64", precedes))
        take(tirx.Select(step > 0, right[()], left[()]))
        right[()] = right[()] + step
        left[()] = left[()] + 1 - step
    for rest, stop in ((left, middle), (right, high)):
        with code.loop_while(rest[()] < stop):
            take(rest[()])
            rest[()] = rest[()] + 1
