"""Rows of positions that are taken by index, some of them several times: edges' ends, tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.shared_kernels._terms import (
    ContractionTerm,
    CrossedTerm,
    NoiseTerm,
    RestTerm,
)
from jaxeff.moment_propagation.shared_kernels.layouts import (
    BATCH,
    CHANNEL,
    canonical,
    restored,
)
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Value


def gathered_layout(layer: Layer, value: Value, layout: Axes) -> Axes | None:
    """Returns the layout of what a layer takes from a value by a list of indices.

    Returns:
        None for another layer, and where more than one axis of positions is indexed.
    """
    if not layer.nodes or len(layer.outputs) != 1:
        return None
    *before, node = layer.nodes
    if node.primitive is not p.gather_p or node.inputs[0] is not value:
        return None
    if any(value in other.values for other in before):
        return None
    numbers, shape = node.params["dimension_numbers"], value.aval.shape
    taken = numbers.collapsed_slice_dims
    sizes = zip(node.params["slice_sizes"], shape, strict=True)
    whole = all(n == m or a in taken for a, (n, m) in enumerate(sizes))
    if len(taken) != 1 or not whole or numbers.operand_batching_dims:
        return None
    if len(node.inputs[1].aval.shape) != 2 or layout[taken[0]] in (BATCH, CHANNEL):
        return None
    kept = iter(a for i, a in enumerate(layout) if i not in taken)
    axes = range(len(node.outputs[0].aval.shape))
    return tuple(next(kept) if i in numbers.offset_dims else layout[taken[0]] for i in axes)


def rows_by(
    gather: Callable[[Array], Array], layouts: Sequence[Axes], shape: Sequence[int]
) -> Callable[[Array], Array]:
    """Makes a function that takes the rows of canonical arrays, of any number of channels.

    Args:
        gather: Takes them from an array in the layout of the value.
        layouts: The layouts before and after.
        shape: The value's canonical shape.
    """
    sizes = tuple(shape[1:-1])
    numbers = jnp.arange(math.prod(sizes)).reshape(1, *sizes, 1)
    before, after = layouts
    index = canonical(gather(restored(jnp.broadcast_to(numbers, shape), before)), after)[0, ..., 0]

    def rows(x: Array) -> Array:
        found = x.reshape(len(x), -1, x.shape[-1])[:, index.reshape(-1)]
        return found.reshape(len(x), *index.shape, x.shape[-1])

    return rows


def rearranged(terms: Sequence[NoiseTerm], rows: Callable[[Array], Array]) -> list[NoiseTerm]:
    """Takes the rows of what noise is made of."""
    found: list[NoiseTerm] = []
    for term in terms:
        taken = replace(term, gate=rows(term.gate))
        if isinstance(taken, RestTerm):
            taken = replace(taken, variance=rows(taken.variance))
        elif isinstance(taken, ContractionTerm):
            through = taken.through and (rows(taken.through[0]), taken.through[1])
            taken = replace(taken, image=rows(taken.image), through=through)
        elif isinstance(taken, CrossedTerm):
            by_channel = jnp.moveaxis(taken.steps, -2, 0)
            taken = replace(taken, steps=jnp.moveaxis(jax.vmap(rows)(by_channel), 0, -2))
        found.append(taken)
    return found
