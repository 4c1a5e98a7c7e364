"""dot_general: ``relax.op.matmul`` for a matmul's layout, a direct contraction elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir.dialects import stablehlo
from tvm import relax, te, tirx
from tvm.tirx import Expr

from jaxeff_export.importer.emission import Emitter, accumulator, constant, lanes_of, rounded, rule
from jaxeff_export.importer.reading import HloNode, HloValue, integers
from jaxeff_export.importer.scalar import ScalarOp, Scope, apply_scalar, is_float, load

_TRANSPOSED_ROWS = 8  # so many rows pay for transposing the other operand


@rule("stablehlo.dot_general")
def _dot_general(e: Emitter, node: HloNode) -> Sequence[relax.Expr]:
    numbers = stablehlo.DotDimensionNumbers(node.op.attributes["dot_dimension_numbers"])
    lhs, rhs = node.operands
    result = node.result.type
    lhs_batch, rhs_batch = (
        list(numbers.lhs_batching_dimensions),
        list(numbers.rhs_batching_dimensions),
    )
    lhs_contract = list(numbers.lhs_contracting_dimensions)
    rhs_contract = list(numbers.rhs_contracting_dimensions)
    lhs_free = _rest(len(lhs.type.shape), lhs_batch, lhs_contract)
    rhs_free = _rest(len(rhs.type.shape), rhs_batch, rhs_contract)
    batch = len(lhs_batch)
    extents = [lhs.type.shape[d] for d in lhs_contract]
    # A sum of no terms; TVM's reductions have at least one.
    if 0 in extents:
        return [constant(np.zeros(result.shape, result.numpy_dtype))]

    if lhs_contract == [len(lhs.type.shape) - 1] and not batch and len(rhs_free) <= 1:
        emitted = _emit_inner(e, node, lhs, rhs, rhs_contract[0])
        if emitted is not None:
            return [emitted]
    # What follows is Relax's form of a matmul: batches first, then [rows, k] and [k, columns].
    leading = list(range(batch))
    # Relax's matmul sums in the operands' dtype, which is right for full-width floats only.
    native = result.dtype in ("float32", "float64") and lhs.type.dtype == rhs.type.dtype
    native = native and lhs.type.dtype == result.dtype
    if (
        native
        and lhs_batch == rhs_batch == leading
        and lhs_contract == [len(lhs.type.shape) - 1]
        and rhs_contract == [batch]
        and len(rhs_free) == 1
        and (len(lhs_free) == 1 or not batch)
    ):
        left = e.tensor(lhs)
        return [e.bb.emit(relax.op.matmul(left, e.tensor(rhs)))]

    # Any other layout: one loop nest indexed as the dimension numbers say.
    accumulate = accumulator(result.dtype)

    def contract(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        axes = [te.reduce_axis((0, n), name=f"k{i}") for i, n in enumerate(extents)]

        def element(*index: Expr) -> Expr:
            left = index[batch : batch + len(lhs_free)]
            right = index[batch + len(lhs_free) :]
            at_a = _position(
                len(lhs.type.shape),
                (lhs_batch, index[:batch]),
                (lhs_free, left),
                (lhs_contract, axes),
            )
            at_b = _position(
                len(rhs.type.shape),
                (rhs_batch, index[:batch]),
                (rhs_free, right),
                (rhs_contract, axes),
            )
            x, y = tirx.Cast(accumulate, load(a(*at_a))), tirx.Cast(accumulate, load(b(*at_b)))
            return summation(accumulate, x, y, axes)

        total = te.compute(result.shape, element, name="contraction")
        if accumulate == result.dtype:
            return total
        return rounded(total, result)

    return [e.te(contract, lhs, rhs, name="contraction")]


def _emit_inner(
    e: Emitter, node: HloNode, lhs: HloValue, rhs: HloValue, contracted: int
) -> relax.Expr | None:
    """Emits a product of which both operands are contracted along their innermost dimension.

    Returns:
        The product, or None where another layout of the loops is better.
    """
    dtype = node.result.type.dtype
    if dtype not in ("float32", "float64") or not lhs.type.dtype == rhs.type.dtype == dtype:
        return None
    rows = math.prod(lhs.type.shape[:-1])
    innermost = contracted == len(rhs.type.shape) - 1
    # A pass over rhs to transpose it is repaid by the tiled matmul over several rows.
    if innermost and len(rhs.type.shape) == 2 and rows >= _TRANSPOSED_ROWS:
        right = e.bb.emit(relax.op.permute_dims(e.tensor(rhs)))
        return e.bb.emit(relax.op.matmul(e.tensor(lhs), right))
    if not innermost:  # it may be a transpose of what was
        source = rhs.node
        if source is None or source.name != "stablehlo.transpose" or rows >= _TRANSPOSED_ROWS:
            return None
        if integers(source.op, "permutation") != [1, 0]:
            return None
        rhs = source.operands[0]
    lanes = lanes_of(lhs.type.shape[-1])
    return e.te(_inner_products(lanes), lhs, rhs, name="contraction") if lanes else None


def _inner_products(lanes: int) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """Contracts the innermost dimensions of two tensors, with one partial result per lane."""

    def contract(a: te.Tensor, b: te.Tensor) -> te.Tensor:
        *rows, length = a.shape
        columns = list(b.shape[:-1])
        # A single sum would be a chain of dependent additions, as long as the dimension.
        chunk = te.reduce_axis((0, length // lanes), name="chunk")

        def partial(*index: Expr) -> Expr:
            k = chunk * lanes + index[-1]
            return te.sum(a(*index[: len(rows)], k) * b(*index[len(rows) : -1], k), axis=chunk)

        partials = te.compute([*rows, *columns, lanes], partial, name="lanes")
        lane = te.reduce_axis((0, lanes), name="lane")
        return te.compute(
            [*rows, *columns], lambda *i: te.sum(partials(*i, lane), axis=lane), name="contraction"
        )

    return contract


def summation(dtype: str, x: Expr, y: Expr, axes: Sequence[tirx.IterVar]) -> Expr:
    """Sums ``x * y`` over reduction axes; integers wrap around, booleans are and/or."""
    if not axes:
        return _product(dtype, x, y)
    if is_float(dtype):
        return te.sum(x * y, axis=list(axes))

    def add(a: Expr, b: Expr) -> Expr:
        scope = Scope()
        return scope.wrap(apply_scalar("stablehlo.add", scope, ScalarOp(dtype, None), a, b))

    # TVM marks its own integer sums as never overflowing; StableHLO's wrap around.
    reducer = te.comm_reducer(add, lambda t: tirx.const(0, t), name="wrapping_sum")
    return reducer(_product(dtype, x, y), axis=list(axes))


def _product(dtype: str, x: Expr, y: Expr) -> Expr:
    scope = Scope()
    return scope.wrap(apply_scalar("stablehlo.multiply", scope, ScalarOp(dtype, None), x, y))


def _rest(rank: int, *taken: Sequence[int]) -> list[int]:
    used = {d for dims in taken for d in dims}
    return [d for d in range(rank) if d not in used]


def _position(rank: int, *parts: tuple[Sequence[int], Sequence]) -> list:
    at: list = [None] * rank
    for dims, indices in parts:
        for d, index in zip(dims, indices, strict=True):
            at[d] = index
    return at
