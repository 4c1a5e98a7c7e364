"""Differences of two entries of one running sum, such as a state's decay between two steps.

For c_t = a_1 + ... + a_t of independent a, c_i - c_j is the sum of what lies between the two, so

    Var[c_i - c_j] = |Var[c_i] - Var[c_j]|,

where operands taken as independent would have the sum of the two: in exp(c_i - c_j), which weighs
inputs in selective state spaces, that is wrong by orders of magnitude.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import jax.numpy as jnp

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.values import Gaussian, is_random, to_variance
from jaxeff.program.ir import Axes, Node, Value, axes

_SLICES = {p.slice_p, p.dynamic_slice_p, p.rev_p}


def difference(
    node: Node, nodes: Sequence[Node], dependent: Container[Node], operands: Sequence[Any]
) -> Gaussian | None:
    """Computes the moments of a difference of two entries of one running sum.

    Args:
        node: The equation.
        nodes: The equations of its layer.
        dependent: Equations among them that combine dependent entries.
        operands: The equation's operands.

    Returns:
        The moments; None for anything else.
    """
    if node.primitive is not p.sub_p or not all(is_random(v) for v in operands):
        return None
    made_by = {v: n for n in nodes for v in n.outputs}
    one, other = (_view(a, made_by) for a in node.inputs)
    if one is None or other is None or one[0] is not other[0] or one[0] in dependent:
        return None
    # At each place both must be entries of the same row of the sum.
    (total, first), (_, second) = one, other
    rows = [
        a for a, n in enumerate(total.outputs[0].aval.shape) if a != total.params["axis"] and n != 1
    ]
    if any(_where(a, first) is None or _where(a, first) != _where(a, second) for a in rows):
        return None
    x, y = (to_variance(v) for v in operands)
    return Gaussian(x.mean - y.mean, jnp.abs(x.var - y.var))


def weighs_by_differences(node: Node, nodes: Sequence[Node]) -> bool:
    """Returns whether a difference of running sums is exponentiated further on."""
    if node.primitive is not p.sub_p:
        return False
    sums, after = set[Value](), {*node.outputs}
    for one in nodes:
        if one.primitive is p.cumsum_p or not sums.isdisjoint(one.values):
            sums.update(one.outputs)
        if not after.isdisjoint(one.values):
            if one.primitive in {p.exp_p, p.exp2_p}:
                return all(v in sums for v in node.values)
            after.update(one.outputs)
    return False


def _where(axis: int, view: Axes) -> int | None:
    return view.index(axis) if view.count(axis) == 1 else None


def _view(atom: Any, made_by: dict[Value, Node]) -> tuple[Node, Axes] | None:
    """Returns the running sum that an operand holds entries of, and its axes in that sum."""
    moves: list[Node] = []
    while isinstance(atom, Value):
        node = made_by.get(atom)
        if node is None:
            return None
        if node.primitive is p.cumsum_p:
            break
        moves.append(node)
        atom = node.inputs[0]
    else:
        return None
    labels: Axes = tuple(range(len(atom.aval.shape)))
    for move in reversed(moves):
        after = _moved(move, labels, node.params["axis"])
        if after is None:
            return None
        labels = after
    return node, labels


def _moved(move: Node, labels: Axes, along: int) -> Axes | None:
    """Returns the axes after a move that leaves rows of the sum in their places, else None."""
    before, after = (tuple(v.aval.shape) for v in (move.inputs[0], move.outputs[0]))
    if move.primitive in axes.MOVES:
        return axes.moved(move.eqn, labels, before)
    if move.primitive not in _SLICES:
        return None
    # Along the sum any entry may be taken.
    taken = {a for a, n, m in zip(labels, before, after, strict=True) if n != m}
    taken.update(labels[i] for i in move.params.get("dimensions", ()))
    return labels if taken <= {along} else None
