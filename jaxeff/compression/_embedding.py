"""Look-up tables such as embeddings: they count as weights, though no product reads them.

Sharp edge: a row is a channel, with a step of its own where `per="channel"`.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.program import Layer
from jaxeff.program.ir import primitives as prim


def is_look_up(layer: Layer) -> bool:
    """Returns whether a layer takes rows of a table of parameters, and does nothing else."""
    if (
        layer.kind != "shape"
        or len(layer.nodes) != 1
        or layer.nodes[0].primitive != prim.p.gather_p
    ):
        return False
    node = layer.nodes[0]
    inputs = list(layer.inputs)
    if len(inputs) != 2 or list(node.inputs) != inputs or layer.weights != (0,):
        return False
    # Slices must be whole rows, so that each has the one step of its channel.
    table, numbers = inputs[0].aval, node.params["dimension_numbers"]
    rows = tuple(numbers.start_index_map)
    whole = all(
        size == (1 if axis in rows else n)
        for axis, (size, n) in enumerate(zip(node.params["slice_sizes"], table.shape, strict=True))
    )
    return whole and jnp.issubdtype(table.dtype, jnp.floating) and not numbers.operand_batching_dims


def rows_of(layer: Layer) -> tuple[int, ...]:
    """Returns the axes of the table that a look-up chooses along."""
    return tuple(layer.nodes[0].params["dimension_numbers"].start_index_map)


def looked_up(layer: Layer, codes: Array, steps: Array, at: Any) -> Array:
    """Looks rows of codes up and scales those alone.

    Args:
        layer: The look-up.
        codes: The table, of integers.
        steps: A step for every row, or for all of them, of size one along other axes.
        at: Indices of the rows.
    """
    given = layer.nodes[0].params
    # Gathered as integers, then scaled: the table never exists in floating point.
    found = _gathered(codes, at, given, given["slice_sizes"]).astype(steps.dtype)
    if steps.size == 1:
        return found * steps.reshape(())
    # Steps have size one along axes that share them, and gather takes no larger slices.
    sizes = tuple(
        1 if n == 1 else size for n, size in zip(steps.shape, given["slice_sizes"], strict=True)
    )
    return found * _gathered(steps, at, given, sizes)


def _gathered(table: Array, at: Any, given: Any, sizes: tuple[int, ...]) -> Array:
    return lax.gather(
        table,
        at,
        given["dimension_numbers"],
        sizes,
        unique_indices=given["unique_indices"],
        indices_are_sorted=given["indices_are_sorted"],
        mode=given["mode"],
    )
