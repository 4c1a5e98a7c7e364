"""Classifies equations: pointwise or not, smooth, affine, polynomial, defined everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jaxeff.core import Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.moment_propagation.rules import MOVING
from jaxeff.program.ir import Node, Value
from jaxeff.program.ir import primitives as prim

# Affine in one operand while the others are deterministic.
AFFINE = {
    p.add_p, p.sub_p, p.mul_p, p.div_p, p.neg_p, p.copy_p, p.name_p, p.stop_gradient_p,
    p.add_jaxvals_p, p.convert_element_type_p,
}  # fmt: skip
_STAIRCASE = {p.round_p, p.floor_p, p.ceil_p, p.rem_p}
_KINKED = {
    p.abs_p, p.sign_p, p.max_p, p.min_p, p.clamp_p, p.reduce_max_p, p.reduce_min_p,
    p.cummax_p, p.cummin_p, p.scatter_max_p, p.scatter_min_p, p.reduce_window_max_p,
    p.reduce_window_min_p, p.sort_p, p.top_k_p,
}  # fmt: skip
_LIMITED = {
    p.acos_p, p.acosh_p, p.asin_p, p.atanh_p, p.digamma_p, p.erf_inv_p, p.lgamma_p, p.log1p_p,
    p.log_p, p.pow_p, p.rsqrt_p, p.sqrt_p,
}  # fmt: skip
# Defined wherever the operand is positive: knowing its sign is enough.
_LIMITED_BELOW = {p.log_p, p.log1p_p, p.pow_p, p.rsqrt_p, p.sqrt_p}
_NEVER_NEGATIVE = {p.abs_p, p.cosh_p, p.exp2_p, p.exp_p, p.logistic_p, p.square_p}
# Never negative if no operand is.
_KEEPING_SIGN = {
    p.add_p, p.convert_element_type_p, p.copy_p, p.div_p, p.log1p_p, p.min_p, p.mul_p, p.name_p,
    p.sqrt_p, p.stop_gradient_p,
}  # fmt: skip
_CONSTANT_MOVES = {p.broadcast_in_dim_p, p.reshape_p, p.iota_p}
_SAME_DEGREE = MOVING | {
    p.neg_p, p.convert_element_type_p, p.reduce_window_sum_p, p.select_n_p,
}  # fmt: skip
_SUMS = {p.add_p, p.sub_p, p.add_jaxvals_p}
_PRODUCTS = {p.mul_p, *prim.LINEAR}


def is_pointwise(eqn: Any) -> bool:
    """Returns whether an equation is a function of single entries that quadrature can integrate."""
    if eqn.primitive in prim.CALLS | prim.CUSTOM:
        return all(is_pointwise(e) for e in _compat.sub_jaxprs(eqn)[0].jaxpr.eqns)
    if eqn.primitive in _CONSTANT_MOVES:
        return all(getattr(a.aval, "shape", ()) == () for a in eqn.invars)
    known = eqn.primitive in prim.ELEMENTWISE or eqn.primitive is p.name_p
    return known and eqn.primitive not in _STAIRCASE


def is_limited(nodes: Sequence[Node]) -> bool:
    """Returns whether pointwise equations may be undefined for some real operands.

    Logarithms and roots of what is never negative (a softplus) don't count.
    """
    found: dict[Any, bool] = {}
    for node in nodes:
        operands = [isinstance(a, Value) and found.get(a, False) for a in node.inputs]
        results, limited = _signs(node.eqn, operands)
        if limited:
            return True
        found.update(zip(node.outputs, results, strict=True))
    return False


def _signs(eqn: Any, operands: Sequence[bool]) -> tuple[list[bool], bool]:
    """Returns whether each result is never negative, and whether an equation may be undefined."""
    if eqn.primitive in prim.CALLS | prim.CUSTOM:
        return _signs_of_body(_compat.sub_jaxprs(eqn)[0], operands)
    signs = [
        a.val >= 0 if isinstance(a, Literal) and jnp.ndim(a.val) == 0 else known
        for a, known in zip(eqn.invars, operands, strict=True)
    ]
    # A function that may be undefined costs a second evaluation at all nodes: hence the effort to
    # derive that an operand is never negative.
    if eqn.primitive in _LIMITED and not (signs[0] and eqn.primitive in _LIMITED_BELOW):
        return [False], True
    even = eqn.primitive is p.integer_pow_p and eqn.params["y"] % 2 == 0
    kept = eqn.primitive in _KEEPING_SIGN and all(signs)
    raised = eqn.primitive is p.max_p and any(signs)
    chosen = eqn.primitive is p.select_n_p and all(signs[1:])
    result = even or kept or raised or chosen or eqn.primitive in _NEVER_NEGATIVE
    return [bool(result)] * len(eqn.outvars), False


def _signs_of_body(closed: Any, operands: Sequence[bool]) -> tuple[list[bool], bool]:
    env = dict(zip(closed.jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> bool:
        return not isinstance(atom, Literal) and env.get(atom, False)

    for eqn in closed.jaxpr.eqns:
        results, limited = _signs(eqn, [read(a) for a in eqn.invars])
        if limited:
            return [False] * len(closed.jaxpr.outvars), True
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(a) for a in closed.jaxpr.outvars], False


def are_smooth(nodes: Sequence[Node], variables: Sequence[Value], results: Sequence[Value]) -> bool:
    """Returns whether results are twice differentiable functions of variables, inside their domain.

    What only enters through `stop_gradient`, as softmax's maximum, doesn't count.
    """
    dependent = set(variables)
    for node in nodes:
        if not dependent.isdisjoint(node.values):
            dependent.update(node.outputs)
    # Backwards from the results, so that a kink whose value nobody uses doesn't count.
    needed = set(results)
    for node in reversed(nodes):
        if needed.isdisjoint(node.outputs) or dependent.isdisjoint(node.outputs):
            continue
        if not _is_smooth(node.eqn):
            return False
        if node.primitive is not p.stop_gradient_p:
            needed.update(node.values)
    return True


def _is_smooth(eqn: Any) -> bool:
    if eqn.primitive in prim.CALLS | prim.CUSTOM:
        return all(_is_smooth(e) for e in _compat.sub_jaxprs(eqn)[0].jaxpr.eqns)
    floats = all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars)
    return floats and eqn.primitive not in _KINKED | _STAIRCASE


def degrees(nodes: Sequence[Node], variables: Sequence[Value]) -> dict[Value, float]:
    """Returns the degree of each value as a polynomial of variables; infinite if it is none."""
    found: dict[Any, float] = dict.fromkeys(variables, 1.0)
    for node in nodes:
        operands = [found.get(a, 0.0) if isinstance(a, Value) else 0.0 for a in node.inputs]
        found.update(zip(node.outputs, _degrees(node.eqn, operands), strict=True))
    return found


def _degrees(eqn: Any, operands: Sequence[float]) -> list[float]:
    count = len(eqn.outvars)
    if not any(operands):
        return [0.0] * count
    if eqn.primitive in prim.CALLS | prim.CUSTOM:
        return _degrees_of_body(_compat.sub_jaxprs(eqn)[0], operands)
    return [_degree(eqn, operands)] * count


def _degree(eqn: Any, operands: Sequence[float]) -> float:
    primitive = eqn.primitive
    # Chosen by a random mask, the result is no polynomial, whatever the cases are.
    if primitive is p.select_n_p and operands[0]:
        return math.inf
    if primitive in _SUMS or primitive in _SAME_DEGREE:
        return max(operands)
    if primitive in _PRODUCTS:
        return sum(operands)
    if primitive is p.div_p:
        return math.inf if operands[1] else operands[0]
    if primitive is p.square_p:
        return 2 * operands[0]
    if primitive is p.integer_pow_p and eqn.params["y"] > 0:
        return eqn.params["y"] * operands[0]
    return math.inf


def _degrees_of_body(closed: Any, operands: Sequence[float]) -> list[float]:
    env = dict(zip(closed.jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> float:
        return 0.0 if isinstance(atom, Literal) else env.get(atom, 0.0)

    for eqn in closed.jaxpr.eqns:
        results = _degrees(eqn, [read(a) for a in eqn.invars])
        env.update(zip(eqn.outvars, results, strict=True))
    return [read(a) for a in closed.jaxpr.outvars]
