"""Results that only a `stop_gradient` keeps from random inputs, as batch statistics in training.

The delta method follows derivatives, and would call them certain. Where a result has another way to
what is random, as behind a straight-through estimator, that way is the one that is meant.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from jaxeff.core import primitives as p
from jaxeff.program.ir import Node, Program, Value


def let_through(program: Program, random: Sequence[Value]) -> Program:
    """Returns a program whose derivatives reach every result that depends on random inputs.

    Args:
        program: A program whose layers may stop gradients.
        random: Inputs of the program that are random.
    """
    nodes = [node for layer in program.layers for node in layer.nodes]
    stops = [node for node in nodes if node.primitive is p.stop_gradient_p]
    if not stops:
        return program
    followed = _reached(nodes, random, stops)
    results = {v for v in program.outputs if isinstance(v, Value)}
    cut_off = (results & _reached(nodes, random, ())) - followed
    opened = [
        stop
        for stop in stops
        # The last one before such results, and before no other: an estimator's stays.
        if (ahead := _reached(nodes, stop.outputs, [s for s in stops if s is not stop])) & cut_off
        and not ahead & results & followed
    ]
    if not opened:
        return program

    def copied(node: Node) -> Node:
        if not any(node is stop for stop in opened):
            return node
        return replace(node, eqn=node.eqn.replace(primitive=p.copy_p, params={}))

    layers = (replace(layer, nodes=tuple(map(copied, layer.nodes))) for layer in program.layers)
    return replace(program, layers=tuple(layers))


def _reached(nodes: Iterable[Node], start: Iterable[Value], stops: Iterable[Node]) -> set[Value]:
    """Collects the values that depend on some, by no way through certain nodes."""
    found, closed = set(start), {id(stop) for stop in stops}
    for node in nodes:
        if id(node) not in closed and not found.isdisjoint(node.values):
            found |= set(node.outputs)
    return found
