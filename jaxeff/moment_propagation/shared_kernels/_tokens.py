"""Which axes of a dense layer's result are positions: those that are pooled further on.

A convolution says which axis holds the examples. A dense layer does the same along all axes but
the last, whatever they hold: tokens, points and time steps are what a sum or mean over them shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jaxeff.moment_propagation.shared_kernels._gathered_rows import gathered_layout
from jaxeff.moment_propagation.shared_kernels._mixing import (
    PositionMap,
    combined_axes,
    is_unruled,
    keeps_positions,
)
from jaxeff.moment_propagation.shared_kernels.layouts import (
    BATCH,
    CHANNEL,
    FIRST_PLACE,
    ChannelGroups,
    PositionContraction,
    chosen_channels,
    follow,
    split,
)
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Axes, Value


def layouts_of_tokens(program: Program, random: Collection[Value]) -> dict[Value, Axes]:
    """Finds the dense layers whose results are pooled along some of their axes.

    Args:
        program: A program.
        random: Inputs of it that are random.

    Returns:
        The layouts of the results of these products. One axis at most is the examples'.
    """
    # A label is an axis of the product that began it, so that those of a sum's branches agree.
    known: dict[Value, Axes] = {}
    begun: dict[Value, frozenset[Value]] = {}
    pooled: dict[Value, set[int | None]] = {}
    random = set(random)
    for layer in program.layers:
        if random.isdisjoint(layer.inputs):
            continue
        before = frozenset[Value]().union(*(begun.get(v, ()) for v in layer.inputs))
        start = {v: known[v] for v in layer.inputs if v in known}
        alone = sum(v in random for v in layer.inputs) == 1
        random.update(layer.outputs)
        made: Mapping[Value, Axes] | None = None
        if layer.kind == "linear":
            made, product = _through_product(layer, start)
            before |= {product} if product is not None else frozenset()
        elif start:
            made = _through(layer, start)
        combined: frozenset[int | None] = frozenset()
        if made is None and len(start) == 1 and alone:
            made, combined = _mixed(layer, *next(iter(start.items())))
        if made is None:
            # What has no rule is warned of, if there are positions to share anything.
            for value, layout in start.items():
                if is_unruled(layer, value, layout):
                    for product in begun[value]:
                        axes = combined_axes(layer, value, layout)
                        pooled.setdefault(product, set()).update(axes)
        for value in layer.outputs:
            if made is None or value not in made:
                continue
            known[value], begun[value] = made[value], before
            summed = combined or set[int | None]().union(*start.values()) - {*made[value], CHANNEL}
            for product in before:
                pooled.setdefault(product, set()).update(summed)
    found = {v: _layout(v, axes) for v, axes in pooled.items() if axes}
    return {v: layout for v, layout in found.items() if layout.count(BATCH) < 2}


def _through(layer: Layer, start: Mapping[Value, Axes]) -> Mapping[Value, Axes] | None:
    """Follows axes through a layer that is no product."""
    for value, layout in start.items():
        rows = gathered_layout(layer, value, layout)
        if rows is not None:
            return {layer.outputs[0]: rows}
    return follow(layer.nodes, start)


def _mixed(
    layer: Layer, value: Value, layout: Axes
) -> tuple[Mapping[Value, Axes] | None, frozenset[int | None]]:
    """Follows axes through a layer of one value; and says which positions it combines."""
    made = layer.outputs[0]
    if (found := PositionMap.of(layer, value, layout)) is not None:
        return {made: found.layout}, found.combined
    kept = layer.kind == "normalization" and (
        keeps_positions(layer, value, layout) or ChannelGroups.of(layer, value, layout) is not None
    )
    kept = kept or chosen_channels(layer, value, layout) is not None
    return ({made: layout} if kept else None), frozenset()


def _through_product(
    layer: Layer, start: Mapping[Value, Axes]
) -> tuple[Mapping[Value, Axes] | None, Value | None]:
    """Follows axes through a dense layer; and returns its product, unless others came before."""
    before, op, after = split(layer)
    read = None if op is None else PositionContraction.of(op)
    moved = follow(before, start)
    if op is None or read is None or read.layouts is not None or moved is None:
        return None, None
    image, kernel = op.inputs
    product = op.outputs[0]
    if kernel in moved or (start and image not in moved):
        return None, None
    axes = moved[image][:-1] if start else _own_axes(product)
    return follow(after, {product: (*axes, CHANNEL)}), None if start else product


def _own_axes(product: Value) -> Axes:
    return tuple(range(FIRST_PLACE, FIRST_PLACE + len(product.aval.shape) - 1))


def _layout(product: Value, pooled: Collection[int | None]) -> Axes:
    return (*(a if a in pooled else BATCH for a in _own_axes(product)), CHANNEL)
