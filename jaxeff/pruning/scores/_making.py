"""Axes of parameters that make channels, and axes that read them: those a product sums.

A kernel of shape [in, heads, width] makes the channels of its last two axes, a transposed one those
of its first; the program says it, no convention does. A table that is looked up makes what it holds
whole. Where an axis is both (the kernel of a recurrent cell makes what it reads), the last one
makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from jaxeff.program.ir import Contraction, Node, Value
from jaxeff.program.ir import primitives as prim
from jaxeff.pruning.dependencies import Axis, Channels, Dimension, dimensions

Place = tuple[str, int]


def making(channels: Channels) -> frozenset[Place]:
    """Returns the leaves and axes that make channels, of parameters with more than one axis."""
    made: set[Place] = set()
    for leaves, makes, reads in _products(channels):
        for path in leaves:
            axes = channels.leaves.get(path, ())
            for i, axis in enumerate(axes if len(axes) > 1 else ()):
                inside = set(dimensions(axis))
                if inside & makes and (not inside & reads or i == len(axes) - 1):
                    made.add((path, i))
    return frozenset(made)


def _products(
    channels: Channels,
) -> Iterator[tuple[frozenset[str], set[Dimension], set[Dimension]]]:
    """Returns, for every product with a parameter, its leaves and what it makes and sums."""
    labels = channels.labels
    for layer in channels.program.walk():
        for node in layer.nodes if layer.kind != "control flow" else ():
            if node.primitive is prim.p.gather_p:
                sides = [0]
            elif node.primitive in prim.LINEAR:
                sides = [i for i, v in enumerate(node.inputs) if _is_weight(v)]
            else:
                continue
            for side in sides:
                operand = node.inputs[side]
                if _is_weight(operand):
                    assert isinstance(operand, Value)
                    makes, reads = _sorted(node, side, labels.of(operand))
                    yield operand.leaves, makes, reads


def _sorted(node: Node, side: int, axes: tuple[Axis, ...]) -> tuple[set[Dimension], set[Dimension]]:
    """Returns the dimensions of an operand that the result has, and those that are summed."""
    if node.primitive is prim.p.gather_p:
        summed = set(node.params["dimension_numbers"].start_index_map)
    else:
        contraction = Contraction.of(node)
        summed = {*contraction.summed(side), *(contraction.window(1) if side else ())}
    return (
        _of(axis for i, axis in enumerate(axes) if i not in summed),
        _of(axis for i, axis in enumerate(axes) if i in summed),
    )


def _of(axes: Iterable[Axis]) -> set[Dimension]:
    return {dimension for axis in axes for dimension in dimensions(axis)}


def _is_weight(value: object) -> bool:
    return isinstance(value, Value) and value.is_weight


__all__ = ["making"]
