"""reduce and reduce_window with any body, over any number of operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir
from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import (
    CodeBuilder,
    Emitter,
    View,
    evaluate_region,
    immediate,
    is_immediate,
    lanes_of,
    rounded,
    rule,
)
from jaxeff_export.importer.reading import HloNode, HloValue, integers, padding
from jaxeff_export.importer.rules._accumulation import accumulate, fold
from jaxeff_export.importer.rules._prefix import emit_running, emit_running_body, running_dimension
from jaxeff_export.importer.rules._shapes import padded_index
from jaxeff_export.importer.scalar import Scope, dtype_of, load


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
        return rounded(total, node.result.type)

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
            fold(code, node, views, extents, source)

        return emit_running_body(e, node, *running, literally)
    if not dims or not _is_plain(operands, inits):
        return accumulate(e, node, extents, source)

    def reduce(x: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, window[d]), name=f"k{d}") for d in dims]
        reducer = region_reducer(node.op, inits[0])

        def element(*index: Expr) -> Expr:
            inside, place = source(index, axes)
            found = _wide(x(*place))
            if inside is not None:
                # The initial value stands for padding; for max that isn't zero.
                found = tirx.if_then_else(inside, found, _wide(immediate(inits[0])))
            return reducer(found, axes)

        total = te.compute(result_shape, element, name="reduce_window")
        return rounded(total, node.result.type)

    return [e.te(reduce, operands[0], name="reduce_window")]


def _is_plain(operands: Sequence[HloValue], inits: Sequence[HloValue]) -> bool:
    """Tells whether TVM's reducers serve: one operand, its own dtype, a constant to start from."""
    same = len(operands) == 1 and operands[0].type.dtype == inits[0].type.dtype
    return same and is_immediate(inits[0])


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
    if len(inits) != 1 or len(body) != 2 or body[0] not in _IDENTITY or not is_immediate(inits[0]):
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
        scope = Scope()
        (result,) = evaluate_region(op.regions[0], scope, [accumulated, new], wide=True)
        return scope.wrap(result)

    reducer = te.comm_reducer(combine, lambda _: _wide(immediate(init)), name="body")
    return lambda element, axes: reducer(element, axis=axes)


def _wide(x: Expr) -> Expr:
    x = load(x)
    return tirx.Cast("float32", x) if dtype_of(x) == "float16" else x


def _only_inits(e: Emitter, node: HloNode, inits: Sequence[HloValue]) -> Sequence[relax.Expr]:
    return [
        e.bb.emit(relax.op.broadcast_to(e.tensor(init), result.type.shape))
        for init, result in zip(inits, node.results, strict=True)
    ]


def _halves(values: Sequence[HloValue]) -> tuple[Sequence[HloValue], Sequence[HloValue]]:
    half = len(values) // 2
    return values[:half], values[half:]
