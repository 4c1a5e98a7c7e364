"""Makes disjoint slices of an array separate inputs: each is an independent value of its own.

The gates of a recurrent cell are slices of one product. As entries of one array they seem to be
mixed wherever two gates meet. As separate arrays they are independent, entry by entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxeff.core import primitives as p
from jaxeff.core import split_p
from jaxeff.moment_propagation.regions._propagation import Environment, propagate
from jaxeff.moment_propagation.values import is_random
from jaxeff.program import Layer
from jaxeff.program.ir import Node


def split_slices(layer: Layer, values: Sequence[Any]) -> tuple[Layer, list[Any]]:
    """Replaces disjoint slices of a layer's random inputs by separate inputs.

    Args:
        layer: A layer.
        values: The inputs; entries of random ones are independent.

    Returns:
        A layer without the equations that slice, and its inputs; both as given if there are none.
    """
    # LSTM gates are disjoint slices of one product: separate, they are independent.
    env = Environment(layer, {}, values=dict(zip(layer.inputs, values, strict=True)))
    cuts: list[Node] = []
    for value in layer.inputs:
        readers = [n for n in layer.nodes if value in n.values]
        # A value that is also a result, or read as a whole, must stay one array.
        if is_random(env.values[value]) and value not in layer.outputs and _are_apart(readers):
            cuts += readers
    # A layer that does nothing but slice would have no equations left.
    if not cuts or len(cuts) == len(layer.nodes):
        return layer, list(values)
    propagate(cuts, env)
    nodes = tuple(n for n in layer.nodes if n not in cuts)
    read = {v for n in nodes for v in n.values}
    parts = [v for n in cuts for v in n.outputs]
    inputs = tuple(v for v in (*layer.inputs, *parts) if v in read or v in layer.outputs)
    return replace(layer, nodes=nodes, inputs=inputs), [env.values[v] for v in inputs]


def _are_apart(readers: Sequence[Node]) -> bool:
    """Returns whether equations take parts of their operand that don't overlap."""
    if len(readers) == 1:
        return readers[0].primitive is split_p
    if len(readers) < 2 or any(n.primitive is not p.slice_p for n in readers):
        return False
    boxes = [
        [*zip(n.params["start_indices"], n.params["limit_indices"], strict=True)] for n in readers
    ]
    # Boxes are disjoint if they are along one axis at least. Strides are ignored: a box then covers
    # more than the slice reads, which errs on the safe side.
    return all(
        any(high <= other_low or other_high <= low
            for (low, high), (other_low, other_high) in zip(one, other, strict=True))
        for i, one in enumerate(boxes)
        for other in boxes[i + 1 :]
    )  # fmt: skip
