"""Classifies equations: pointwise or not, smooth, affine, polynomial, defined everywhere."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from jaxeff.core import Literal
from jaxeff.core import primitives as p
from jaxeff.moment_propagation.rules import DATA_MOVEMENT
from jaxeff.program.ir import Node, Value, entering, inside, walk_nodes
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
_SAME_DEGREE = DATA_MOVEMENT | {
    p.neg_p, p.convert_element_type_p, p.reduce_window_sum_p, p.select_n_p,
}  # fmt: skip
_SUMS = {p.add_p, p.sub_p, p.add_jaxvals_p}
_PRODUCTS = {p.mul_p, *prim.LINEAR}


def is_pointwise(eqn: Any) -> bool:
    """Returns whether an equation is a function of single entries that quadrature can integrate."""
    return all(map(_is_pointwise, inside(eqn)))


def _is_pointwise(eqn: Any) -> bool:
    if eqn.primitive in _CONSTANT_MOVES:
        return all(getattr(a.aval, "shape", ()) == () for a in eqn.invars)
    known = eqn.primitive in prim.ELEMENTWISE or eqn.primitive is p.name_p
    return known and eqn.primitive not in _STAIRCASE


def is_limited(nodes: Sequence[Node]) -> bool:
    """Returns whether pointwise equations may be undefined for some real operands.

    Logarithms and roots of what is never negative (a softplus) don't count.
    """
    limited: list[Any] = []

    def rule(eqn: Any, signs: Sequence[bool]) -> list[bool]:
        # A function that may be undefined costs a second evaluation at all nodes: hence the effort
        # to derive that an operand is never negative.
        if eqn.primitive in _LIMITED and not (signs[0] and eqn.primitive in _LIMITED_BELOW):
            limited.append(eqn)
        return [_is_never_negative(eqn, signs)] * len(eqn.outvars)

    # Nothing is known of what the nodes are given: it may be negative.
    walk_nodes(nodes, defaultdict(bool), (), entering(rule, _sign), _sign)
    return bool(limited)


def _sign(atom: Any, value: Any) -> bool:
    """Returns whether a literal is never negative."""
    # Other constants aren't looked at: they may be traced.
    return isinstance(atom, Literal) and jnp.ndim(value) == 0 and bool(value >= 0)


def _is_never_negative(eqn: Any, signs: Sequence[bool]) -> bool:
    """Returns whether an equation's results are never negative, given which operands are."""
    even = eqn.primitive is p.integer_pow_p and eqn.params["y"] % 2 == 0
    kept = eqn.primitive in _KEEPING_SIGN and all(signs)
    raised = eqn.primitive is p.max_p and any(signs)
    chosen = eqn.primitive is p.select_n_p and all(signs[1:])
    return even or kept or raised or chosen or eqn.primitive in _NEVER_NEGATIVE


def are_smooth(nodes: Sequence[Node], variables: Sequence[Value], results: Sequence[Value]) -> bool:
    """Returns whether results are twice differentiable functions of variables, inside their domain.

    Values that enter through `stop_gradient` only, as softmax's maximum, don't count.
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
        if not all(map(_is_smooth, inside(node.eqn))):
            return False
        if node.primitive is not p.stop_gradient_p:
            needed.update(node.values)
    return True


def _is_smooth(eqn: Any) -> bool:
    floats = all(jnp.issubdtype(v.aval.dtype, jnp.inexact) for v in eqn.outvars)
    return floats and eqn.primitive not in _KINKED | _STAIRCASE


def degrees(nodes: Sequence[Node], variables: Sequence[Value]) -> dict[Value, float]:
    """Returns the degree of each value as a polynomial of variables; infinite if it is none."""

    def rule(eqn: Any, operands: Sequence[float]) -> list[float]:
        return [_degree(eqn, operands) if any(operands) else 0.0] * len(eqn.outvars)

    def constant(*_: Any) -> float:
        return 0.0

    # Whatever else the nodes read is a constant to the variables: of degree zero.
    found = defaultdict(float, dict.fromkeys(variables, 1.0))
    walk_nodes(nodes, found, (), entering(rule, constant), constant)
    return found


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
