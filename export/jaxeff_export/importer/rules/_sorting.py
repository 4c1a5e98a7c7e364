"""sort, stable, by any comparator, of any number of operands together.

Of a sort that is cut off after its first few elements (as top_k is written), only these are kept in
order while going through the rest; otherwise it is a merge sort.
"""

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from tvm import relax, tirx
from tvm.tirx import Expr

from jaxeff_export.importer._elementwise import called_regions, evaluate_region
from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloNode, attribute, integers
from jaxeff_export.importer._loops import CodeBuilder, View, int64

FEW = 64  # elements that may be kept by insertion, which for more may be slower than sorting


@rule("stablehlo.sort")
def _sort(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    rank = len(node.results[0].type.shape)
    if not rank:
        return [e.tensor(operand) for operand in node.operands]
    dimension = attribute(node.op, "dimension") % rank
    return _sorted(e, node, dimension, node.op.regions[0], _used(node, dimension))


@rule("custom_call @ApproxTopK")
def _approx_top_k(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    """Selects exactly, which is allowed; the operands' second half would only fill gaps."""
    configuration: Any = node.op.attributes["mhlo.backend_config"]
    dimension = configuration["reduction_dim"].value
    (comparator,) = called_regions(node.op)
    return _sorted(e, node, dimension, comparator, node.results[0].type.shape[dimension])


def _used(node: HloNode, dimension: int) -> int:
    """Counts the first elements along a dimension that other operations read."""
    users = [user for result in node.results for user in result.users]
    sliced = all(user.name == "stablehlo.slice" for user in users)
    if not sliced or any(result.is_output for result in node.results):
        return node.results[0].type.shape[dimension]
    return max(integers(user.op, "limit_indices")[dimension] for user in users)


def _sorted(
    e: Emitter, node: HloNode, dimension: int, comparator: ir.Region, kept: int
) -> Sequence[relax.Expr]:
    """Sorts operands together; of the results the first ``kept`` elements are written."""
    count = len(node.results)
    shape = node.operands[0].type.shape
    length = shape[dimension]
    # Insertion takes length * kept steps at worst, but mostly one: few elements enter the best.
    few = kept < length and kept <= FEW
    first_of = _first_by_insertion if few else _first_by_merging

    def body(code: CodeBuilder, *views: View) -> None:
        reads, writes = views[:count], views[-count:]
        with code.loops([n for d, n in enumerate(shape) if d != dimension]) as others:

            def row(x: View) -> View:
                return x.map(lambda i: (*others[:dimension], i, *others[dimension:]))

            ordered = first_of(code, comparator, [row(x) for x in reads], length, kept)
            for x, y in zip(ordered, writes, strict=True):
                code.copy(x, row(y), (kept,))

    return e.kernel(body, node, name="sort")


def _first_by_insertion(
    code: CodeBuilder, comparator: ir.Region, row: Sequence[View], length: int, kept: int
) -> list[View]:
    """Inserts the elements one by one into a sorted list of fixed length, and drops the last."""
    # One place more than is kept takes what falls off the end, without a test.
    first = [code.local(x.dtype, kept + 1) for x in row]
    place, moving = code.local("int64"), code.local("bool")
    with code.loop(length) as i:
        new = [code.let(x[i]) for x in row]
        place[()] = tirx.min(i, int64(kept))
        moving[()] = place[()] > 0
        with code.loop_while(moving[()]):
            old = [code.let(x[place[()] - 1]) for x in first]
            pairs = [x for pair in zip(new, old, strict=True) for x in pair]
            # Only a strict precedence moves it on, so equal elements stay in order.
            (moving[()],) = evaluate_region(comparator, code, pairs)
            with code.when(moving[()]):
                for x, value in zip(first, old, strict=True):
                    x[place[()]] = value
                place[()] = place[()] - 1
                moving[()] = place[()] > 0
        for x, value in zip(first, new, strict=True):
            x[place[()]] = value
    return first


def _first_by_merging(
    code: CodeBuilder, comparator: ir.Region, row: Sequence[View], length: int, kept: int
) -> list[View]:
    # Two halves: each pass merges from one into the other.
    halves = [code.local(x.dtype, 2 * length) for x in row]
    for x, half in zip(row, halves, strict=True):
        code.copy(x, half, (length,))
    start = _merge_passes(code, comparator, halves, length)
    return [half.shifted(start) for half in halves]


def _merge_passes(
    code: CodeBuilder, comparator: ir.Region, halves: Sequence[View], length: int
) -> Expr:
    """Merges sorted runs of doubling width; returns the start of the sorted half."""
    end = int64(length)
    width, source = code.variable(int64(1)), code.variable(int64(0))
    with code.loop_while(width[()] < end):
        # The halves begin at 0 and at `length`.
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
    code: CodeBuilder,
    comparator: ir.Region,
    halves: Sequence[View],
    offsets: tuple[Expr, Expr],
    bounds: tuple[Expr, Expr, Expr],
) -> None:
    """Merges two neighbouring runs; of equal elements the left one comes first."""
    source, target = offsets
    low, middle, high = bounds
    left, right, out = code.variable(low), code.variable(middle), code.variable(target + low)

    def take(i: Expr) -> None:
        for half in halves:
            half[out[()]] = half[source + i]
        out[()] = out[()] + 1

    with code.loop_while(tirx.And(left[()] < middle, right[()] < high)):
        pairs = [x for half in halves for x in (half[source + right[()]], half[source + left[()]])]
        # The right element goes first only if it strictly precedes: the sort is stable.
        (precedes,) = evaluate_region(comparator, code, pairs)
        step = code.let(tirx.Cast("int64", precedes))
        take(tirx.Select(step > 0, right[()], left[()]))
        right[()] = right[()] + step
        left[()] = left[()] + 1 - step
    for rest, stop in ((left, middle), (right, high)):
        with code.loop_while(rest[()] < stop):
            take(rest[()])
            rest[()] = rest[()] + 1
