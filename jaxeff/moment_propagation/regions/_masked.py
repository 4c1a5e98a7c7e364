"""Statistics of the entries that a mask leaves, as `jax.nn.logsumexp(x, where=mask)` takes them.

The maximum is taken of where(mask, x, -inf), the sum of where(mask, exp(x - max), 0): the second is
the exponential of the first, less the maximum. So where everything that is made of x is masked
alike, x is where(mask, x, -inf) from the start, and masks change nothing any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import is_pointwise
from jaxeff.moment_propagation.regions._propagation import Environment
from jaxeff.program.ir import Node, Value


def masked_alike(nodes: Sequence[Node], root: Value, env: Environment) -> list[Node]:
    """Finds the masks that change nothing once the entries they take away are -inf.

    Args:
        nodes: The equations that are made of a tensor, in order.
        root: The tensor.
        env: The values of the layer.

    Returns:
        The selections, the first one that of the tensor itself; none where something that isn't
        masked alike reaches a result or is combined along an axis.
    """
    made_by = {v: n for n in env.layer.nodes for v in n.outputs}
    bare, found = {root}, list[Node]()
    for node in nodes:
        if _masks(node, root, env, made_by) and (not found or _same(node, found[0], made_by)):
            found.append(node)
        elif not bare.isdisjoint(node.values):
            if not is_pointwise(node.eqn):
                return []
            bare.update(node.outputs)
    whole = bool(found) and root in found[0].inputs and bare.isdisjoint(env.layer.outputs)
    return found if whole else []


def _masks(node: Node, root: Value, env: Environment, made_by: dict[Value, Node]) -> bool:
    """Returns whether an equation leaves entries of the tensor, or exponentials, by a mask."""
    if node.primitive is not p.select_n_p or len(node.inputs) != 3:
        return False
    mask, other, kept = node.inputs
    if not isinstance(mask, Value) or not isinstance(kept, Value) or env.sources(mask):
        return False
    if kept is root:
        return env.number(other) == -math.inf
    maker = made_by.get(kept)
    return maker is not None and maker.primitive is p.exp_p and env.number(other) == 0


def _same(one: Node, other: Node, made_by: dict[Value, Node]) -> bool:
    """Returns whether two selections have one mask, or masks that are broadcast alike."""
    a, b = one.inputs[0], other.inputs[0]
    if a is b:
        return True
    first, second = made_by.get(a), made_by.get(b)
    if first is None or second is None or first.primitive is not p.broadcast_in_dim_p:
        return False
    alike = second.primitive is first.primitive and first.params == second.params
    return alike and first.inputs[0] is second.inputs[0]
