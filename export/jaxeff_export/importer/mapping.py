"""A map applies its body element by element: an elementwise operation of the user's own."""

from __future__ import annotations

from tvm.tirx import Expr

from .regions import evaluate_region
from .scalars import ScalarOp, scalar_rule
from .scope import Scope


@scalar_rule("stablehlo.map", cost=8)
def _map(s: Scope, op: ScalarOp, *operands: Expr) -> Expr:
    (result,) = evaluate_region(op.op.regions[0], s, operands)
    return result
