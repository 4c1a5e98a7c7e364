"""The bodies of reductions, evaluated on scalars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir
from tvm import te
from tvm.tirx import Expr

from jaxeff_export.importer.emission._elementwise import immediate
from jaxeff_export.importer.reading import (
    TensorType,
    Unsupported,
    attribute,
    dense_array,
    splat,
    tensor_type,
)
from jaxeff_export.importer.scalar import (
    NARROW,
    SCALAR_RULES,
    ScalarOp,
    Scope,
    apply_scalar,
    narrow,
    store,
)


def evaluate_region(
    region: ir.Region, scope: Scope, arguments: Sequence[Expr], *, wide: bool = False
) -> list[Expr]:
    """Applies a region of scalar operations to scalars, as scopes hold these.

    Args:
        region: has one block of elementwise operations.
        scope: takes the intermediate values.
        arguments: one scalar for each argument of the block.
        wide: compute 16-bit floats in 32 bits throughout, as reductions do; arguments and results
            are then float32 too.

    Returns:
        One scalar for each result.

    Raises:
        Unsupported: the region holds an operation that is not elementwise, or uses a value from
            outside.
    """
    block = region.blocks[0]
    env: dict[ir.Value, Expr] = dict(zip(block.arguments, arguments, strict=True))
    for view in block.operations:
        op = view.operation
        for operand in op.operands:
            # JAX may hoist constants out of the region; anything else would be captured data.
            if operand not in env:
                env[operand] = _outer_constant(operand, wide)
        operands = [env[operand] for operand in op.operands]
        if op.name in ("stablehlo.return", "func.return"):
            return operands
        if op.name == "func.call":
            callee = _function(op, attribute(op, "callee"))
            results = evaluate_region(callee, scope, operands, wide=wide)
            env.update(zip(op.results, results, strict=True))
            continue
        kind = tensor_type(op.results[0].type)
        # No rounding of intermediates: 16 bits would lose small terms of a long sum.
        if wide:
            kind = TensorType(kind.shape, accumulator(kind.dtype))
        if op.name == "stablehlo.constant":
            env[op.results[0]] = _constant(op, kind)
        # Scalars of another rank: the one element is the same.
        elif op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim") and kind.size == 1:
            env[op.results[0]] = operands[0]
        elif op.name in SCALAR_RULES:
            # TVM would simplify x - x and x / x as if x were always finite.
            same = len(op.operands) == 2 and op.operands[0] == op.operands[1]
            info = ScalarOp(kind.dtype, op, same, in_reduction=wide)
            env[op.results[0]] = apply_scalar(op.name, scope, info, *operands)
        else:
            raise Unsupported(f"its body holds {op.name}, which is not elementwise")
    raise Unsupported("its body returns nothing")


def _outer_constant(value: Any, wide: bool) -> Expr:
    """Reads a constant that stands before the operation whose region uses it."""
    op = getattr(value.owner, "operation", None)
    if op is None or op.name != "stablehlo.constant":
        raise Unsupported("its body uses a value from outside")
    kind = tensor_type(value.type)
    return _constant(op, TensorType(kind.shape, accumulator(kind.dtype)) if wide else kind)


def _constant(op: ir.Operation, kind: TensorType) -> Expr:
    value = dense_array(op.attributes["value"])
    if value.size != 1:
        raise Unsupported("its body holds a constant that is not a scalar")
    return immediate(splat(value.reshape(()), kind))


def called_regions(op: ir.Operation) -> list[ir.Region]:
    """Returns the bodies of the functions that a custom call names."""
    names: Any = op.attributes["called_computations"]
    return [_function(op, name.value) for name in names]


def _function(op: ir.Operation, name: str) -> ir.Region:
    top: Any = op
    while top.parent is not None:
        top = top.parent.operation
    return ir.SymbolTable(top)[name].regions[0]


def accumulator(dtype: str) -> str:
    """Names the dtype in which reductions to ``dtype`` are carried out."""
    return "float32" if dtype in NARROW else dtype


def rounded(total: te.Tensor, kind: TensorType) -> te.Tensor:
    """Rounds accumulators to the dtype of the result."""
    if accumulator(kind.dtype) == kind.dtype:
        return total

    def element(*index: Expr) -> Expr:
        scope = Scope()
        return scope.wrap(store(narrow(scope, total(*index), kind.dtype), kind.dtype))

    return te.compute(kind.shape, element, name="round")
