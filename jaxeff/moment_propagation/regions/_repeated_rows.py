"""Sums over rows of a table that are looked up by indices known at run time, such as embeddings.

A row that is looked up n times is the same random value n times: of a sum over k of g(w[i_k]) it is
n g(w_r), with a variance of n^2 Var g(w_r). With n_k the number of times that the row of place k is
looked up in all,

    Var = sum over rows of n_r^2 Var g(w_r) = sum over k of n_k Var g(w[i_k]).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import is_pointwise
from jaxeff.moment_propagation.values import Gaussian, to_variance
from jaxeff.program.ir import Node, Value

_MOST_PLACES = 4096


def sum_of_rows(
    node: Node,
    nodes: Sequence[Node],
    tables: Collection[Value],
    is_number: Callable[[Any], bool],
    read: Callable[[Any], Any],
) -> Gaussian | None:
    """Computes the moments of a sum over rows that were looked up, and then mapped one by one.

    Args:
        node: The equation.
        nodes: The equations of its layer.
        tables: Random values whose entries are independent.
        is_number: Whether an operand is one number everywhere.
        read: Returns the value of an operand.

    Returns:
        The moments; None for anything else.
    """
    look_up = _look_up(node, nodes, is_number)
    if look_up is None or look_up.inputs[0] not in tables or look_up.inputs[1] in tables:
        return None
    numbers, axes = look_up.params["dimension_numbers"], node.params["axes"]
    table, shape = look_up.inputs[0].aval.shape, look_up.outputs[0].aval.shape
    whole = look_up.params["slice_sizes"] == (1, *table[1:])
    rows = numbers.start_index_map == numbers.collapsed_slice_dims == (0,)
    places = [a for a in range(len(shape)) if a not in numbers.offset_dims]
    summed = [places.index(a) for a in axes if a in places]
    if not (whole and rows) or numbers.operand_batching_dims or len(summed) < len(axes):
        return None
    if math.prod(shape[a] for a in axes) > _MOST_PLACES:
        return None
    # Beyond the table it is its first or last row, or undefined.
    indices = jnp.clip(read(look_up.inputs[1])[..., 0], 0, table[0] - 1)
    times = jnp.expand_dims(_times(indices, summed), tuple(numbers.offset_dims))
    x = to_variance(read(node.inputs[0]))
    return Gaussian(x.mean.sum(axes), (times.astype(x.dtype) * x.var).sum(axes))


def _look_up(node: Node, nodes: Sequence[Node], is_number: Callable[[Any], bool]) -> Node | None:
    """Returns the gather that a sum's terms are functions of, the same at all places."""
    if node.primitive is not p.reduce_sum_p:
        return None
    made_by = {v: n for n in nodes for v in n.outputs}
    maker = made_by.get(node.inputs[0])
    while maker is not None and maker.primitive is not p.gather_p:
        varying = [a for a in maker.inputs if not is_number(a)]
        if len(varying) != 1 or not is_pointwise(maker.eqn):
            return None
        maker = made_by.get(varying[0])
    return maker


def _times(indices: Array, axes: Sequence[int]) -> Array:
    """Counts how often each index is there, along some axes."""
    kept = [a for a in range(indices.ndim) if a not in axes]
    order = [*kept, *axes]
    moved = jnp.transpose(indices, order)
    flat = moved.reshape(*moved.shape[: len(kept)], -1)
    count = (flat[..., :, None] == flat[..., None, :]).sum(-1)
    return jnp.transpose(count.reshape(moved.shape), [order.index(a) for a in range(len(order))])
