"""The precision of factorizations: matrices of 16-bit floats are factored in 32 bits."""

from __future__ import annotations

from tvm import te
from tvm.tirx import Expr

from jaxeff_export.importer.scalar import ScalarOp, Scope, apply_scalar, load, store


def converted(tensor: te.Tensor, dtype: str) -> te.Tensor:
    """Returns a tensor in another dtype, rounding as StableHLO's convert does."""
    if str(tensor.dtype) == dtype:
        return tensor

    def element(*index: Expr) -> Expr:
        scope = Scope()
        target = ScalarOp(dtype, None)
        value = apply_scalar("stablehlo.convert", scope, target, load(tensor(*index)))
        return scope.wrap(store(value, dtype))

    return te.compute(tensor.shape, element, name="convert")
