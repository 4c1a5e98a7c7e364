"""reduce, reduce_window and map, with any body, over any number of operands.

Bodies that TVM's own reducers do not fit are applied in imperative loops. Windows that reach from
an element to the end of its dimension are cumulative sums and the like: JAX writes these as
``reduce_window`` over the whole dimension, which taken literally is quadratic. Here every element
continues from its neighbour. Sums and products of float32 then run in float64, so a long sum is no
less accurate than one that adds in pairs; 16-bit floats are rounded at every step, as XLA does in
windows. Bodies of several operations run in the dtypes of accumulators. Forwards their results
equal those of the literal windows; backwards they combine in another order.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir
from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer import _elementwise as elementwise
from jaxeff_export.importer import _scalar_rules as scalar_rules
from jaxeff_export.importer._arithmetic import compare
from jaxeff_export.importer._emitter import Emitter, rule
from jaxeff_export.importer._graph import HloNode, HloValue, integers, padding
from jaxeff_export.importer._loops import CodeBuilder, View
from jaxeff_export.importer.rules._contraction import lanes_of
from jaxeff_export.importer.rules._indexing import padded_index

Source = Callable[[Sequence[Expr], Sequence[Expr]], tuple[Expr | None, list[Expr]]]


def accumulate(
    e: Emitter, node: HloNode, extents: Sequence[int], source: Source
) -> Sequence[relax.Expr]:
    """Reduces an operation's operands together, one element of the results after the other.

    The node has as many initial values as operands; `extents` are lengths of the loops over the
    elements that one result is reduced from. `source` maps an index of the results and one of those
    loops to an index of the operands, and to the condition that it is in bounds (the initial value
    is taken if not).
    """

    def body(code: CodeBuilder, *views: View) -> None:
        fold_bodies(code, node, views, extents, source)

    return e.kernel(body, node, name=node.name.rpartition(".")[2])


def fold_bodies(
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
                element = x[*place] if inside is None else _guarded(code, inside, x, place)
                new = converted(code, element, scalar_rules.dtype_of(start))
                arguments.append(new if inside is None else tirx.Select(inside, new, start))
            results = elementwise.evaluate_region(node.op.regions[0], code, arguments, wide=True)
            for total, result in zip(totals, results, strict=True):
                total[()] = result
        for y, total in zip(writes, totals, strict=True):
            y[*at] = converted(code, total[()], y.dtype)


def widened(code: CodeBuilder, starts: Sequence[View]) -> list[Expr]:
    """Reads initial values in the dtypes of accumulators."""
    return [code.let(converted(code, x[()], elementwise.accumulator(x.dtype))) for x in starts]


def _guarded(code: CodeBuilder, inside: Expr, x: View, place: Sequence[Expr]) -> Expr:
    """Reads an element, or some zero where the index is out of bounds."""
    element = x[*place]
    return code.let(
        tirx.if_then_else(inside, element, tirx.const(0, scalar_rules.dtype_of(element)))
    )


def converted(code: CodeBuilder, x: Expr, dtype: str) -> Expr:
    """Converts a scalar; to bfloat16, which scopes hold as float32, it is rounded."""
    if scalar_rules.dtype_of(x) == dtype:
        return x
    return scalar_rules.apply_scalar(
        "stablehlo.convert", code, scalar_rules.ScalarOp(dtype, None), x
    )


@rule("stablehlo.map")
def _map(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    def body(code: CodeBuilder, *views: View) -> None:
        *reads, y = views
        with code.loops(node.result.type.shape) as at:
            arguments = [code.let(x[*at]) for x in reads]
            (y[*at],) = elementwise.evaluate_region(node.op.regions[0], code, arguments)

    return e.kernel(body, node, name="map")


# Up to so many elements, backward windows of narrow floats are computed literally, like XLA's.
_LITERAL = 64


def running_dimension(node: HloNode) -> tuple[int, bool] | None:
    """Finds the dimension of a running ``reduce_window``, and whether it runs backwards.

    Returns None where the windows are of another form.
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
    if (
        backwards
        and n <= _LITERAL
        and any(r.type.dtype in scalar_rules.NARROW for r in node.results)
    ):
        return None  # each window is summed forwards, and every sum rounded
    return d, backwards


def emit_running(
    e: Emitter, node: HloNode, operation: str, dimension: int, backwards: bool
) -> Sequence[relax.Expr]:
    """Emits a running sum, product, maximum or minimum, started from the operation's identity."""
    dtype = node.result.type.dtype
    summed = operation in ("stablehlo.add", "stablehlo.multiply")
    wide = scalar_rules.ScalarOp("float64" if summed and dtype == "float32" else dtype, None)

    def body(code: CodeBuilder, x: View, start: View, y: View) -> None:
        def advance(total: Expr, new: Expr) -> list[Expr]:
            return [
                scalar_rules.apply_scalar(
                    operation, code, wide, total, converted(code, new, wide.dtype)
                )
            ]

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
            wide = [
                converted(code, x, elementwise.accumulator(scalar_rules.dtype_of(x)))
                for x in arguments
            ]
            totals, new = wide[:count], wide[count:]
            # A window combines left to right; running backwards, the new element is its leftmost.
            ordered = [*new, *totals] if backwards else [*totals, *new]
            return elementwise.evaluate_region(
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
    totals = [code.local(scalar_rules.dtype_of(start), *after) for start in starts]
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


@rule("stablehlo.reduce")
def _reduce(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    operands, inits = _halves(node.operands)
    dims = sorted(integers(node.op, "dimensions"))
    shape = operands[0].type.shape
    if any(shape[d] == 0 for d in dims):
        return _only_inits(e, node, inits)
    kept = [d for d in range(len(shape)) if d not in dims]

    def position(index: Sequence[Expr], axes: Sequence[Expr]) -> list[Expr]:
        order = dict(zip([*kept, *dims], [*index, *axes], strict=True))
        return [order[d] for d in range(len(shape))]

    # TVM's reducers take one operand and start from a constant; the rest are explicit loops.
    if not dims or not _is_plain(operands, inits):
        return accumulate(e, node, [shape[d] for d in dims], lambda i, k: (None, position(i, k)))
    if _in_lanes(node, inits, dims, shape):
        return _reduce_in_lanes(e, node, inits, dims)

    def reduce(x: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, shape[d]), name=f"k{d}") for d in dims]
        reducer = region_reducer(node.op, inits[0])
        total = te.compute(
            node.result.type.shape,
            lambda *i: reducer(_wide(x(*position(i, axes))), axes),
            name="reduce",
        )
        return elementwise.rounded(total, node.result.type)

    return [e.te(reduce, operands[0], name="reduce")]


@rule("stablehlo.reduce_window")
def _reduce_window(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    operands, inits = _halves(node.operands)
    running = running_dimension(node)
    if running is not None and (operation := _plain_body(node, inits)):
        return emit_running(e, node, operation, *running)
    shape = operands[0].type.shape
    rank = len(shape)
    ones = [1] * rank
    window = integers(node.op, "window_dimensions")
    strides = integers(node.op, "window_strides", ones)
    base = integers(node.op, "base_dilations", ones)
    dilation = integers(node.op, "window_dilations", ones)
    low = [before for before, _ in padding(node.op, rank)]
    result_shape = node.results[0].type.shape
    dims = [d for d in range(rank) if window[d] != 1]

    # One more than the furthest position of a window: the check of an upper bound that it cannot
    # reach is left out.
    spread = [
        (result_shape[d] - 1) * strides[d] + (window[d] - 1) * dilation[d] + 1 for d in range(rank)
    ]

    def source(index: Sequence[Expr], axes: Sequence[Expr]) -> tuple[Expr | None, list[Expr]]:
        offset = dict(zip(dims, axes, strict=True))
        at = [
            i * strides[d] + (offset[d] * dilation[d] if d in offset else 0)
            for d, i in enumerate(index)
        ]
        return padded_index(at, low, [b - 1 for b in base], shape, spread)

    extents = [window[d] for d in dims]
    if running is not None:

        def literally(code: CodeBuilder, views: Sequence[View]) -> None:
            fold_bodies(code, node, views, extents, source)

        return emit_running_body(e, node, *running, literally)
    if not dims or not _is_plain(operands, inits):
        return accumulate(e, node, extents, source)

    def reduce(x: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, window[d]), name=f"k{d}") for d in dims]
        reducer = region_reducer(node.op, inits[0])

        def element(*index: Expr) -> Expr:
            inside, place = source(index, axes)
            term = _wide(x(*place))
            if inside is not None:
                # The initial value stands for padding; for max that isn't zero.
                term = tirx.if_then_else(inside, term, _wide(elementwise.immediate(inits[0])))
            return reducer(term, axes)

        total = te.compute(result_shape, element, name="reduce_window")
        return elementwise.rounded(total, node.result.type)

    if _holds_edges(node, inits):
        return [_extreme(e, node, inits[0])]
    return [e.te(reduce, operands[0], name="reduce_window")]


def _holds_edges(node: HloNode, inits: Sequence[HloValue]) -> bool:
    """Tells whether windows are of extremes, and hold the elements at an edge that they cross."""
    shape = node.operands[0].type.shape
    rank, ones = len(shape), [1] * len(shape)
    window = integers(node.op, "window_dimensions")
    sides = zip(padding(node.op, rank), window, strict=True)
    # Without gaps: a window that is partly outside holds the elements next to what is outside.
    dense = all(
        max(integers(node.op, name, ones)) == 1 for name in ("base_dilations", "window_dilations")
    )
    return (
        dense
        and all(0 <= side < size for pair, size in sides for side in pair)
        and _plain_body(node, inits) in ("stablehlo.maximum", "stablehlo.minimum")
    )


def _extreme(e: Emitter, node: HloNode, init: HloValue) -> relax.Expr:
    """Finds windows' extremes.

    Outside stands the nearest element inside, which the window holds anyway: nothing to check.
    Windows along rows are folded over rows first, which are vectors, then over neighbours in these.
    """
    shape, result_shape = node.operands[0].type.shape, node.results[0].type.shape
    rank = len(shape)
    window = integers(node.op, "window_dimensions")
    strides = integers(node.op, "window_strides", [1] * rank)
    low = [before for before, _ in padding(node.op, rank)]

    def folded(x: te.Tensor, shape_after: Sequence[int], dims: Sequence[int]) -> te.Tensor:
        axes = {d: te.reduce_axis((0, window[d]), name=f"k{d}") for d in dims if window[d] != 1}
        reducer = region_reducer(node.op, init)

        def element(*index: Expr) -> Expr:
            place = list(index)
            for d in dims:
                at = index[d] * strides[d] + axes.get(d, 0) - low[d]
                place[d] = tirx.max(tirx.min(at, shape[d] - 1), 0)
            return reducer(_wide(x(*place)), [*axes.values()])

        return te.compute(shape_after, element, name="reduce_window")

    *others, last = range(rank)

    def reduce(x: te.Tensor) -> te.Tensor:
        if window[last] != 1 and any(window[d] != 1 for d in others):
            rows = folded(x, [*result_shape[:-1], shape[-1]], others)
            return elementwise.rounded(folded(rows, result_shape, [last]), node.result.type)
        return elementwise.rounded(folded(x, result_shape, range(rank)), node.result.type)

    return e.te(reduce, node.operands[0], name="reduce_window")


def _is_plain(operands: Sequence[HloValue], inits: Sequence[HloValue]) -> bool:
    """Tells whether TVM's reducers serve: one operand, its own dtype, a constant to start from."""
    same = len(operands) == 1 and operands[0].type.dtype == inits[0].type.dtype
    return same and elementwise.is_immediate(inits[0])


_IDENTITY: dict[str, Callable[[np.dtype], object]] = {
    "stablehlo.add": lambda dtype: 0,
    "stablehlo.multiply": lambda dtype: 1,
    "stablehlo.maximum": lambda dtype: _lowest(dtype),
    "stablehlo.minimum": lambda dtype: _highest(dtype),
}


def _lowest(dtype: np.dtype) -> object:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


def _highest(dtype: np.dtype) -> object:
    return np.iinfo(dtype).max if dtype.kind in "iu" else np.inf


def _in_lanes(
    node: HloNode, inits: Sequence[HloValue], dims: Sequence[int], shape: Sequence[int]
) -> bool:
    """Tells whether partial results may be kept: there is a known identity to start from."""
    # Lanes are neighbours in memory, so the innermost dimension has to be reduced.
    if dims[-1] != len(shape) - 1 or lanes_of(shape[-1]) is None:
        return False
    return inits[0].type.dtype in _LANE_DTYPES and _plain_body(node, inits) is not None


def _plain_body(node: HloNode, inits: Sequence[HloValue]) -> str | None:
    """Names the operation that a body consists of, if it starts from the operation's identity."""
    body = [view.operation.name for view in node.op.regions[0].blocks[0].operations]
    if (
        len(inits) != 1
        or len(body) != 2
        or body[0] not in _IDENTITY
        or not elementwise.is_immediate(inits[0])
    ):
        return None
    dtype = inits[0].type.numpy_dtype
    # Every lane starts from the identity; any other start would be counted once per lane.
    same = dtype.kind != "b" and inits[0].constant == _IDENTITY[body[0]](dtype)
    return body[0] if same else None


_LANE_DTYPES = ("float32", "float64", "int32")


def _reduce_in_lanes(
    e: Emitter, node: HloNode, inits: Sequence[HloValue], dims: Sequence[int]
) -> Sequence[relax.Expr]:
    """Reduces to one partial result per lane, then reduces the lanes."""
    shape = node.operands[0].type.shape
    kept = [d for d in range(len(shape)) if d not in dims]
    kept_shape = [shape[d] for d in kept]
    lanes = lanes_of(shape[-1])
    assert lanes is not None

    def reduce(x: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, shape[d]), name=f"k{d}") for d in dims[:-1]]
        chunk = te.reduce_axis((0, shape[-1] // lanes), name="chunk")

        def partial(*index: Expr) -> Expr:
            at: list = [None] * len(shape)
            for d, i in [*zip(kept, index[:-1], strict=True), *zip(dims[:-1], axes, strict=True)]:
                at[d] = i
            at[-1] = chunk * lanes + index[-1]
            return region_reducer(node.op, inits[0])(x(*at), [*axes, chunk])

        partials = te.compute([*kept_shape, lanes], partial, name="lanes")
        lane = te.reduce_axis((0, lanes), name="lane")
        total = region_reducer(node.op, inits[0])
        return te.compute(kept_shape, lambda *i: total(partials(*i, lane), [lane]), name="reduce")

    return [e.te(reduce, node.operands[0], name="reduce")]


def region_reducer(
    op: ir.Operation, init: HloValue
) -> Callable[[Expr, Sequence[tirx.IterVar]], Expr]:
    """Makes the reducer of a body, started from a constant."""

    def combine(accumulated: Expr, new: Expr) -> Expr:
        scope = scalar_rules.Scope()
        (result,) = elementwise.evaluate_region(op.regions[0], scope, [accumulated, new], wide=True)
        return scope.wrap(result)

    reducer = te.comm_reducer(combine, lambda _: _wide(elementwise.immediate(init)), name="body")
    return lambda element, axes: reducer(element, axis=axes)


def _wide(x: Expr) -> Expr:
    x = scalar_rules.load(x)
    return tirx.Cast("float32", x) if scalar_rules.dtype_of(x) == "float16" else x


def _only_inits(e: Emitter, node: HloNode, inits: Sequence[HloValue]) -> Sequence[relax.Expr]:
    return [
        e.bb.emit(relax.op.broadcast_to(e.tensor(init), result.type.shape))
        for init, result in zip(inits, node.results, strict=True)
    ]


def _halves(values: Sequence[HloValue]) -> tuple[Sequence[HloValue], Sequence[HloValue]]:
    half = len(values) // 2
    return values[:half], values[half:]
