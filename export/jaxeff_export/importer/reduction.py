"""reduce and reduce_window with any body, over any number of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir
from tvm import relax, te, tirx
from tvm.tirx import Expr

from .attributes import integers, padding
from .elementwise import immediate, is_immediate
from .emitter import Emitter, rule
from .graph import Node, Value
from .lanes import lanes_of
from .loops import Array, Block, kernel, loop
from .regions import accumulator, evaluate_region
from .scope import Scope, dtype_of, load
from .shapes import padded_index
from .types import TensorType


@rule("stablehlo.reduce")
def _reduce(e: Emitter, node: Node) -> Sequence[relax.Expr]:
    operands, inits = _halves(node.operands)
    dims = sorted(integers(node.op, "dimensions"))
    shape = operands[0].type.shape
    if any(shape[d] == 0 for d in dims):
        return _only_inits(e, node, inits)
    if not dims:
        return apply_elementwise(e, node, [*inits, *operands])
    result_shape = node.results[0].type.shape
    kept = [d for d in range(len(shape)) if d not in dims]

    if _in_lanes(node, inits, dims, shape):
        return _reduce_in_lanes(e, node, inits, dims)

    def reduce(*tensors: te.Tensor) -> list[te.Tensor] | te.Tensor:
        values, starts = tensors[: len(operands)], _widened(tensors[len(operands) :])
        axes = [te.reduce_axis((0, shape[d]), name=f"k{d}") for d in dims]

        def element(*index: Expr) -> Expr | tuple[Expr, ...]:
            at: list = [None] * len(shape)
            for d, i in [*zip(kept, index, strict=True), *zip(dims, axes, strict=True)]:
                at[d] = i
            reducer = region_reducer(node.op, inits, starts)
            return reducer([_wide(x(*at)) for x in values], axes)

        return _narrowed(node, te.compute(result_shape, element, name="reduce"))

    return _emit(e, node, reduce, operands, inits)


@rule("stablehlo.map")
def _map(e: Emitter, node: Node) -> Sequence[relax.Expr]:
    return apply_elementwise(e, node, node.operands)


def apply_elementwise(e: Emitter, node: Node, operands: Sequence[Value]) -> Sequence[relax.Expr]:
    """Apply an operation's body to every element of its operands (scalars go to all)."""

    def body(block: Block, reads: list[Array], writes: list[Array]) -> None:
        def element(inner: Block, at: list[Expr]) -> None:
            arguments = [x(*at) if x.shape else x() for x in reads]
            values = evaluate_region(node.op.regions[0], inner, arguments)
            inner.add(*(y.set(v, *at) for y, v in zip(writes, values, strict=True)))

        block.add(loop(node.results[0].type.shape, element))

    name = node.name.rpartition(".")[2]
    return kernel(e, name, operands, [r.type for r in node.results], body)


@rule("stablehlo.reduce_window")
def _reduce_window(e: Emitter, node: Node) -> Sequence[relax.Expr]:
    operands, inits = _halves(node.operands)
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

    def reduce(*tensors: te.Tensor) -> list[te.Tensor] | te.Tensor:
        values, starts = tensors[: len(operands)], _widened(tensors[len(operands) :])
        axes = {d: te.reduce_axis((0, window[d]), name=f"k{d}") for d in dims}
        spread = [
            (result_shape[d] - 1) * strides[d] + (window[d] - 1) * dilation[d] + 1
            for d in range(rank)
        ]

        initial = _initial(inits, starts)

        def element(*index: Expr) -> Expr | tuple[Expr, ...]:
            at = [
                i * strides[d] + (axes[d] * dilation[d] if d in axes else 0)
                for d, i in enumerate(index)
            ]
            inside, source = padded_index(at, low, [b - 1 for b in base], shape, spread)
            elements = [_wide(x(*source)) for x in values]
            if inside is not None:
                elements = [
                    tirx.if_then_else(inside, x, start)
                    for x, start in zip(elements, initial, strict=True)
                ]
            if not axes:
                arguments = [*initial, *elements]
                region = node.op.regions[0]
                return _one_or_tuple(
                    [_region_result(region, k, arguments) for k in range(len(values))]
                )
            reducer = region_reducer(node.op, inits, starts)
            return reducer(elements, list(axes.values()))

        return _narrowed(node, te.compute(result_shape, element, name="reduce_window"))

    return _emit(e, node, reduce, operands, inits)


_IDENTITY: dict[str, Callable[[np.dtype], object]] = {
    "stablehlo.add": lambda dtype: 0,
    "stablehlo.multiply": lambda dtype: 1,
    "stablehlo.maximum": lambda dtype: _lowest(dtype),
    "stablehlo.minimum": lambda dtype: _highest(dtype),
}


def _lowest(dtype: np.dtype) -> object:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _highest(dtype: np.dtype) -> object:
    return np.inf if dtype.kind == "f" else np.iinfo(dtype).max


def _in_lanes(
    node: Node, inits: Sequence[Value], dims: Sequence[int], shape: Sequence[int]
) -> bool:
    """Tell whether partial results may be kept: one operand, and a known identity to start from."""
    if len(inits) != 1 or not dims or dims[-1] != len(shape) - 1:
        return False
    if lanes_of(shape[-1]) is None or inits[0].type.dtype not in _LANE_DTYPES:
        return False
    body = [view.operation.name for view in node.op.regions[0].blocks[0].operations]
    if len(body) != 2 or body[0] not in _IDENTITY or not is_immediate(inits[0]):
        return False
    return bool(inits[0].constant == _IDENTITY[body[0]](inits[0].type.numpy_dtype))


_LANE_DTYPES = ("float32", "float64", "int32")


def _reduce_in_lanes(
    e: Emitter, node: Node, inits: Sequence[Value], dims: Sequence[int]
) -> Sequence[relax.Expr]:
    """Reduce to one partial result per lane, then reduce the lanes."""
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
            return region_reducer(node.op, inits, [])([x(*at)], [*axes, chunk])

        partials = te.compute([*kept_shape, lanes], partial, name="lanes")
        lane = te.reduce_axis((0, lanes), name="lane")
        total = region_reducer(node.op, inits, [])
        return te.compute(kept_shape, lambda *i: total([partials(*i, lane)], [lane]), name="reduce")

    return [e.te(reduce, node.operands[0], name="reduce")]


def region_reducer(
    op: ir.Operation, inits: Sequence[Value], starts: Sequence[te.Tensor]
) -> Callable[[Sequence[Expr], Sequence[tirx.IterVar]], Expr | tuple[Expr, ...]]:
    """The reducer of a body, started from the operation's initial values."""
    region, count, initial = op.regions[0], len(inits), _initial(inits, starts)

    def combine(x, y):  # type: ignore[no-untyped-def]
        accumulated, new = ([x], [y]) if count == 1 else (list(x), list(y))
        return _one_or_tuple(
            [_region_result(region, k, [*accumulated, *new]) for k in range(count)]
        )

    def identity(*dtypes: str):  # type: ignore[no-untyped-def]
        values = [
            start if is_immediate(v) else tirx.const(0, t)
            for v, start, t in zip(inits, initial, dtypes, strict=True)
        ]
        return _one_or_tuple(values)

    reducer = te.comm_reducer(combine, identity, name="body")

    def apply(elements, axes):  # type: ignore[no-untyped-def]
        init = initial if starts else None
        if count == 1:
            return reducer(elements[0], axis=axes, init=init[0] if init else None)
        return reducer(tuple(elements), axis=axes, init=init)

    return apply


def _region_result(region: ir.Region, k: int, arguments: Sequence[Expr]) -> Expr:
    """Result ``k`` of a body; each has names of its own, as TVM wants every name bound once."""
    scope = Scope()
    return scope.wrap(evaluate_region(region, scope, arguments, wide=True)[k])


def _initial(inits: Sequence[Value], starts: Sequence[te.Tensor]) -> list[Expr]:
    """The initial values; ``starts`` are those known at run time only (TVM wants plain loads)."""
    remaining = iter(starts)
    return [_wide(immediate(v) if is_immediate(v) else next(remaining)()) for v in inits]


def _widened(starts: Sequence[te.Tensor]) -> list[te.Tensor]:
    """Convert scalar tensors to the accumulators' dtypes."""

    def widened(start: te.Tensor) -> te.Tensor:
        if accumulator(start.dtype) == start.dtype:
            return start
        return te.compute((), lambda *_: _wide(start()), name="start")

    return [widened(start) for start in starts]


def _wide(x: Expr) -> Expr:
    x = load(x)
    return tirx.Cast("float32", x) if dtype_of(x) == "float16" else x


def _narrowed(node: Node, totals: te.Tensor | list[te.Tensor]) -> te.Tensor | list[te.Tensor]:
    """Round accumulators to the dtypes of the results."""
    tensors = [totals] if isinstance(totals, te.Tensor) else list(totals)
    rounded = [_rounded(total, r.type) for r, total in zip(node.results, tensors, strict=True)]
    return rounded[0] if len(rounded) == 1 else rounded


def _emit(
    e: Emitter, node: Node, function: Callable, operands: Sequence[Value], inits: Sequence[Value]
) -> Sequence[relax.Expr]:
    runtime = [v for v in inits if not is_immediate(v)]
    name = node.name.rpartition(".")[2]
    result = e.te(function, *operands, *runtime, name=name)
    if len(node.results) == 1:
        return [result]
    return [e.bb.emit(relax.TupleGetItem(result, i)) for i in range(len(node.results))]


def _only_inits(e: Emitter, node: Node, inits: Sequence[Value]) -> Sequence[relax.Expr]:
    return [
        e.bb.emit(relax.op.broadcast_to(e.tensor(init), result.type.shape))
        for init, result in zip(inits, node.results, strict=True)
    ]


def _halves(values: Sequence[Value]) -> tuple[Sequence[Value], Sequence[Value]]:
    half = len(values) // 2
    return values[:half], values[half:]


def _rounded(total: te.Tensor, kind: TensorType) -> te.Tensor:
    if accumulator(kind.dtype) == kind.dtype:
        return total
    return te.compute(kind.shape, lambda *i: tirx.Cast(kind.dtype, total(*i)), name="round")


def _one_or_tuple(values: list[Expr]) -> Expr | tuple[Expr, ...]:
    return values[0] if len(values) == 1 else tuple(values)
