"""dot_general: ``relax.op.matmul`` for a matmul's layout, a direct contraction elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxlib.mlir.dialects import stablehlo
from tvm import relax, te, tirx
from tvm.tirx import Expr

from .emitter import Emitter, constant, rule
from .graph import Node
from .scalars import ScalarOp, apply_scalar
from .scope import Scope, is_float


@rule("stablehlo.dot_general")
def _dot_general(e: Emitter, node: Node) -> Sequence[relax.Expr]:
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
    if 0 in extents:
        return [constant(np.zeros(result.shape, result.numpy_dtype))]

    leading = list(range(batch))
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

    accumulate = "float32" if result.dtype in ("float16", "bfloat16") else result.dtype

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
            x, y = tirx.Cast(accumulate, a(*at_a)), tirx.Cast(accumulate, b(*at_b))
            return summation(accumulate, x, y, axes)

        total = te.compute(result.shape, element, name="contraction")
        if accumulate == result.dtype:
            return total
        return te.compute(result.shape, lambda *i: tirx.Cast(result.dtype, total(*i)), name="round")

    return [e.te(contract, lhs, rhs, name="contraction")]


def summation(dtype: str, x: Expr, y: Expr, axes: Sequence[tirx.IterVar]) -> Expr:
    """The sum of ``x * y`` over reduction axes; integers wrap around, booleans are and/or."""
    if not axes:
        return _product(dtype, x, y)
    if is_float(dtype):
        return te.sum(x * y, axis=list(axes))

    def add(a: Expr, b: Expr) -> Expr:
        scope = Scope()
        return scope.wrap(apply_scalar("stablehlo.add", scope, ScalarOp(dtype, None), a, b))

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
