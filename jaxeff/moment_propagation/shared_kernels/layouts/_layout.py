"""Which axis of an array is the examples', which the channels', and which are positions.

An array's layout is an `Axes` of `BATCH`, `CHANNEL` and further numbers for positions; None for an
axis of size one that is none of them. In the *canonical* layout an array is
`[batch, *positions, channels]`; an axis that is missing has size one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import AFFINE, is_pointwise
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Node, Value, axes
from jaxeff.program.ir import primitives as prim

BATCH, CHANNEL, FIRST_PLACE = 0, 1, 2

_WINDOWS = {p.reduce_window_max_p, p.reduce_window_min_p, p.reduce_window_sum_p}
_EXTREMA = {p.reduce_window_max_p, p.reduce_window_min_p, p.reduce_max_p, p.reduce_min_p}
_REDUCING = {p.reduce_sum_p, p.reduce_max_p, p.reduce_min_p}
_CONVERTING = {p.convert_element_type_p, p.copy_p, p.name_p}


def _order(layout: Axes) -> list[int]:
    """Returns the axes in canonical order, missing ones left out."""
    rank = {BATCH: 0, CHANNEL: 2}
    return sorted(range(len(layout)), key=lambda i: rank.get(layout[i], 1))  # type: ignore[arg-type]


def canonical(x: Array, layout: Axes) -> Array:
    """Brings an array to `[batch, *positions, channels]`."""
    x = jnp.transpose(x, _order(layout))
    x = x if BATCH in layout else x[None]
    return x if CHANNEL in layout else x[..., None]


def restored(x: Array, layout: Axes) -> Array:
    """Brings an array from the canonical layout back to its own."""
    x = x if CHANNEL in layout else x[..., 0]
    x = x if BATCH in layout else x[0]
    order = _order(layout)
    return jnp.transpose(x, sorted(range(len(order)), key=order.__getitem__))


def positions(shape: Sequence[int], layout: Axes) -> int:
    """Returns the number of positions of an array."""
    sizes = zip(shape, layout, strict=True)
    return math.prod(n for n, a in sizes if a not in (BATCH, CHANNEL))


def follow(nodes: Sequence[Node], start: Mapping[Value, Axes]) -> dict[Value, Axes] | None:
    """Follows layouts through pointwise functions, moves and poolings of positions.

    Args:
        nodes: Equations.
        start: The layouts of the values that are followed.

    Returns:
        The layouts of these and of all values that are made of them; None where an equation is of
        another kind, or combines values of different layouts.
    """
    known = dict(start)
    for node in nodes:
        layouts = {known[a] for a in node.inputs if isinstance(a, Value) and a in known}
        if not layouts:
            continue
        after = _after(node, layouts.pop()) if len(layouts) == 1 else None
        if after is None or len(node.outputs) != 1:
            return None
        known[node.outputs[0]] = after
    return known


def pooled(nodes: Sequence[Node], start: Mapping[Value, Axes]) -> int:
    """Returns how many positions equations combine into one, along paths from some values."""
    known, count = set(start), 1
    for node in nodes:
        if known.isdisjoint(node.values):
            continue
        known.update(node.outputs)
        if node.primitive in _WINDOWS:
            count *= math.prod(node.params["window_dimensions"])
        elif node.primitive in _REDUCING:
            shape = node.inputs[0].aval.shape
            count *= math.prod(shape[i] for i in node.params["axes"])
    return count


def takes_extremum(nodes: Sequence[Node]) -> bool:
    """Returns whether equations hold a maximum or minimum over positions."""
    return any(node.primitive in _EXTREMA for node in nodes)


def is_sum(nodes: Sequence[Node], value: Value) -> bool:
    """Returns whether equations make sums of a value's entries, times what isn't made of it."""
    sums = {p.reduce_sum_p, p.reduce_window_sum_p}
    known = {value}
    for node in nodes:
        read = known.intersection(node.values)
        if read:
            known.update(node.outputs)
            several = sum(a in known for a in node.inputs if isinstance(a, Value)) > 1
            if several or node.primitive not in axes.MOVES | _CONVERTING | AFFINE | sums:
                return False
    return True


def only_moves(nodes: Sequence[Node], start: Mapping[Value, Axes]) -> bool:
    """Returns whether what is made of some values is these values, elsewhere or converted."""
    known = set(start)
    for node in nodes:
        if known.isdisjoint(node.values):
            continue
        known.update(node.outputs)
        if node.primitive not in axes.MOVES | _CONVERTING:
            return False
    return True


def depends(nodes: Sequence[Node], random: Collection[Value], value: Any) -> bool:
    """Returns whether a value is random, or made of random ones by nodes."""
    known = set(random)
    for node in nodes:
        if not known.isdisjoint(node.values):
            known.update(node.outputs)
    return value in known


def keeps_entries(layer: Layer, value: Value) -> bool:
    """Returns whether each entry of a layer's one result is made of the same entry of a value."""
    known, made = {value}, layer.outputs[0]
    for node in layer.nodes:
        if known.isdisjoint(node.values):
            continue
        if node.primitive in axes.MOVES:
            return False
        known.update(node.outputs)
    return made.aval.shape == value.aval.shape


def _after(node: Node, layout: Axes) -> Axes | None:
    """Returns the layout of an equation's result, given that of the operands that are followed."""
    shape, q = tuple(node.inputs[0].aval.shape), node.params
    out = tuple(node.outputs[0].aval.shape)
    if node.primitive in prim.ELEMENTWISE | prim.IN_PLACE or is_pointwise(node.eqn):
        return layout if len(out) == len(layout) else None
    if node.primitive in axes.MOVES:
        moved = axes.moved(node.eqn, layout, shape)
        repeats = moved is None or any(
            a is None and n != 1 for a, n in zip(moved, out, strict=True)
        )
        return None if repeats else moved
    if node.primitive in _REDUCING:
        kept = any(layout[i] in (BATCH, CHANNEL) and shape[i] != 1 for i in q["axes"])
        return None if kept else axes.dropped(layout, q["axes"])
    if node.primitive in _WINDOWS:
        windows = zip(q["window_dimensions"], q["window_strides"], layout, strict=True)
        crossed = any(a in (BATCH, CHANNEL) and (n, s) != (1, 1) for n, s, a in windows)
        return None if crossed else layout
    return None
