"""Finds random values that are divided by their own sums over segments, and warns of them.

Graph attention (arXiv 1710.10903) normalises its scores over the edges of a node. What all edges
share cancels in such a quotient; taken as independent of its sum, a score keeps it. The variances
of a small network of two such layers were eleven times the true ones.

Sharp edges
- Softmax and norms along an axis are recognised as wholes, and aren't looked for here.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.values import MomentsWarning
from jaxeff.program import Program
from jaxeff.program.ir import Node, Value
from jaxeff.program.ir import primitives as prim

_MOVING = {p.broadcast_in_dim_p, p.convert_element_type_p, p.reshape_p, p.squeeze_p}


def divided_by_own_sums(program: Program, random: Collection[Value]) -> str | None:
    """Finds the first quotient of random values and sums of the same values over segments.

    Args:
        program: A program or a loop's body.
        random: Inputs of it that are random.

    Returns:
        Its site; None if there is none.
    """
    known = set(random)
    origin: dict[Value, Value] = {}  # what a value is only another form of
    summed: dict[Value, set[Value]] = {}  # what went into sums that a value is made of
    for layer in program.layers:
        for node in layer.nodes:
            if known.isdisjoint(node.values):
                continue
            known.update(node.outputs)
            if node.primitive is p.div_p and _meets(node, origin, summed):
                return layer.site or str(node.primitive)
            if node.primitive in _MOVING:
                (value,) = node.values
                origin[node.outputs[0]] = origin.get(value, value)
            sums = set().union(*(summed.get(v, set()) for v in node.values))
            if node.primitive is p.scatter_add_p and isinstance(node.inputs[2], Value):
                sums.add(origin.get(node.inputs[2], node.inputs[2]))
            # Behind a product with other weights there is nothing left that could cancel.
            if sums and node.primitive not in prim.LINEAR:
                summed.update((v, sums) for v in node.outputs)
    return None


def _meets(node: Node, origin: dict[Value, Value], summed: dict[Value, set[Value]]) -> bool:
    above, below = node.inputs
    if not isinstance(above, Value) or not isinstance(below, Value):
        return False
    return origin.get(above, above) in summed.get(below, set())


def warn_of_own_sums(site: str) -> None:
    """Warns of a quotient whose numerators and sums are taken as independent."""
    warnings.warn(
        f"moments: {site!r} divides what random weights make by its own sums over segments, as "
        "graph attention does; the two are taken as independent, and variances may be ten times "
        "too large. Take method='linear'; moments_check says how far they are off, and "
        "moments(f, shared=False) leaves it so.",
        MomentsWarning,
        stacklevel=2,
    )
