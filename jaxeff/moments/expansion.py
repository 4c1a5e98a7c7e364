"""Moments of several dependent entries at once, by derivatives of the function that combines them.

For y = g(x) with independent Gaussian x of variances v, expanded to second order at the means,

    E y = g + 1/2 sum_p v_p g_pp        Var y = sum_p v_p g_p^2 + 1/2 sum_pq v_p v_q g_pq^2,

which is exact where g is a polynomial of degree two: sums of squares, distances, products of a
tensor with a rearrangement of itself, a mean taken off, a variance.

Entries of x that meet no other (a batch) are differentiated together, so that the cost grows with
the entries that are mixed (n: n + 1 evaluations of g for an affine one, n^2 for others) and not
with the batch.

Sharp edges
- Anything but a polynomial is approximated; the caller is told.
- Above `MOST_ENTRIES` intermediate entries there is no result: independence is cheaper then, and
  the caller says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxeff.moments.dependence import fresh, walk
from jaxeff.moments.gaussian import Gaussian
from jaxeff.moments.lineage import SHARED, Labels
from jaxeff.moments.pointwise import are_smooth, degrees
from jaxeff.program import primitives as prim
from jaxeff.program.graph import Node, Value
from jaxeff.program.layers import Layer

MOST_ENTRIES = 2**22


def has_rule(layer: Layer, random: Sequence[Value]) -> bool:
    """Whether a layer with products is exact by expansion, at an acceptable cost."""
    return degree(layer, random) <= 2 and (is_gram(layer.nodes) or is_affordable(layer, random))


def degree(layer: Layer, random: Sequence[Value]) -> float:
    """The degree of a layer's results as polynomials of its random inputs; infinite if none."""
    found = degrees(layer.nodes, random)
    return max(found.get(v, 0.0) for v in layer.outputs)


def is_gram(nodes: Sequence[Node]) -> bool:
    """Whether equations only move entries of one array, and then contract two such views."""
    *moves, last = nodes
    return last.primitive in prim.LINEAR and all(n.primitive in prim.SHAPE for n in moves)


def is_affordable(layer: Layer, random: Sequence[Value]) -> bool:
    """Whether the derivatives fit into `MOST_ENTRIES`."""
    sizes = [v.aval.size for v in (*layer.inputs, *(v for n in layer.nodes for v in n.outputs))]
    if not all(isinstance(size, int) for size in sizes):
        return False  # symbolic
    largest = max(sizes)
    power = 1 if degree(layer, random) <= 1 else 2
    return all(
        sum(_count(v, _mixed_axes(v, labels)) for v, labels in lineage) ** power * largest
        <= MOST_ENTRIES
        for lineage in _lineages(layer, random)
    )


def second_order(layer: Layer, random: Sequence[Value], values: dict[Value, Any]) -> Any:
    """Moments of a layer's results by expansion to second order at the means.

    Args:
        layer: Equations with floating-point results.
        random: Its random inputs, independent of each other, entries and all.
        values: What each of its inputs is: a `Gaussian` for the random ones, else an array.

    Returns:
        A `Gaussian` for each result, or None where a function has kinks or is too expensive.
    """
    if not are_smooth(layer.nodes, random, layer.outputs) or not is_affordable(layer, random):
        return None
    fixed = {v: a for v, a in values.items() if v not in random}
    curved = degree(layer, random) > 1
    results = []
    for number, lineage in enumerate(_lineages(layer, random)):

        def result(*variables: Array, number: int = number) -> Array:
            given = {**fixed, **dict(zip(random, variables, strict=True))}
            return layer.fn(*(given[v] for v in layer.inputs))[number]

        results.append(_expanded(result, lineage, values, curved))
    return results


_OneLineage = list[tuple[Value, Labels]]


def _lineages(layer: Layer, random: Sequence[Value]) -> list[_OneLineage]:
    """For each result, the random inputs and the labels of its axes with respect to each."""
    found = walk(layer.nodes, fresh(random))[0]
    return [
        [(v, found[out].get(v, (SHARED,) * len(out.aval.shape))) for v in random]
        for out in layer.outputs
    ]


def _mixed_axes(value: Value, labels: Labels) -> list[int]:
    return [a for a in range(len(value.aval.shape)) if a not in labels]


def _count(value: Value, axes: Sequence[int]) -> int:
    return math.prod(value.aval.shape[a] for a in axes)


def _expanded(
    fn: Callable[..., Array], lineage: _OneLineage, values: dict[Value, Any], curved: bool
) -> Gaussian:
    means = [values[v].mean for v, _ in lineage]
    bases = [_basis(v, labels, values[v].mean.dtype) for v, labels in lineage]
    spreads = [_spread(values[v].var, labels) for v, labels in lineage]

    def at(k: int, x: Array) -> list[Array]:
        return [*means[:k], x, *means[k + 1 :]]

    def slope(k: int, tangent: Array, where: Sequence[Array]) -> Array:
        return _derivative(lambda x: fn(*where[:k], x, *where[k + 1 :]), where[k], tangent)

    def with_entry(k: int, total: tuple[Array, Array], entry: tuple[Array, Array]) -> Any:
        mean, var = total
        tangent, v = entry

        def curvature(other: int, second: Array) -> Array:
            return _derivative(lambda x: slope(k, tangent, at(other, x)), means[other], second)

        var = var + v * slope(k, tangent, means) ** 2
        if curved:
            mean = mean + 0.5 * v * curvature(k, tangent)
            for other, (basis, w) in enumerate(zip(bases, spreads, strict=True)):
                bends = jax.vmap(functools.partial(curvature, other))(basis)
                var = var + 0.5 * v * jnp.sum(w * bends * bends, 0)
        return (mean, var), None

    centre = fn(*means)
    total = (centre, jnp.zeros_like(centre))
    for k, entries in enumerate(zip(bases, spreads, strict=True)):
        total, _ = jax.lax.scan(functools.partial(with_entry, k), total, entries)
    return Gaussian(*total)


def _derivative(fn: Callable[[Array], Array], at: Array, tangent: Array) -> Array:
    return jax.jvp(fn, (at,), (tangent,))[1]


def _basis(value: Value, labels: Labels, dtype: Any) -> Array:
    """Tangents `[mixed entries, *shape]`: one mixed entry each, at all places of the other axes."""
    shape = tuple(value.aval.shape)
    mixed = _mixed_axes(value, labels)
    count = _count(value, mixed)
    layout = [n if a in mixed else 1 for a, n in enumerate(shape)]
    return jnp.broadcast_to(jnp.eye(count, dtype=dtype).reshape(count, *layout), (count, *shape))


def _spread(var: Array, labels: Labels) -> Array:
    """Variances `[mixed entries, *layout of the result]`, size 1 where a result's axis is new."""
    mixed = [a for a in range(var.ndim) if a not in labels]
    kept = [a for a in labels if isinstance(a, int)]
    moved = jnp.transpose(var, [*mixed, *kept])
    sizes = iter(moved.shape[len(mixed) :])
    layout = [next(sizes) if isinstance(x, int) else 1 for x in labels]
    return moved.reshape(-1, *layout)
