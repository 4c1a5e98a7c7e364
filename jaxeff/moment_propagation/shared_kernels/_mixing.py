"""Functions that combine positions, but keep examples and channels apart.

A weighted sum over tokens, a matrix of neighbours, a running sum, the standard deviation over time:
each result is made of one channel's positions. To first order it is a linear map L of the noise of
entries, which is known from what they are made of (`_terms`). For each kernel weight, source and
rest,

    Var[L y] = sum_(t, i) v_(t, i, c) L[g x_(t, i)]^2 + Var[sum w z] L[g]^2 + L^2[g^2 rest],

with L^2 the map of the squared factors. Of what goes on, a gate G lets L^T G through to what comes
before: that is the gate there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.moment_propagation.dependence import SHARED, Labels, WholeLayer, identity, walk
from jaxeff.moment_propagation.shared_kernels._noise import root, spread
from jaxeff.moment_propagation.shared_kernels._terms import (
    ContractionTerm,
    CrossedTerm,
    LinearMap,
    MixedTerm,
    NoiseTerm,
    RestTerm,
)
from jaxeff.moment_propagation.shared_kernels.layouts import BATCH, CHANNEL
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Value

_NEW_AXES = 1000
_COMBINING = {"reduction", "matmul", "elementwise"}


class PositionMap(NamedTuple):
    """How a layer makes its result of the positions of a value.

    Attributes:
        layout: The layout of the result.
        combined: The axes of which several positions make one; none of them where they are only
            chosen or repeated.
    """

    layout: Axes
    combined: frozenset[int | None]

    @classmethod
    def of(cls, layer: Layer, value: Value, layout: Axes) -> PositionMap | None:
        """Reads a layer; None where it doesn't keep examples and channels apart.

        Args:
            layer: A layer.
            value: The one of its inputs that is random.
            layout: The value's layout.
        """
        if not layer.nodes or len(layer.outputs) != 1 or layer.kind == "control flow":
            return None
        shape, made = value.aval.shape, layer.outputs[0]
        labels = _labels(layer, value, identity(shape))
        if labels is None:
            return None
        own = [layout[x] if isinstance(x, int) else None for x in labels]
        sizes = list(zip(layout, shape, strict=True))
        fixed = [a for a, n in sizes if a in (BATCH, CHANNEL) and n != 1]
        if any(own.count(a) != 1 for a in fixed):
            return None
        places = {a for a, n in sizes if a not in (BATCH, CHANNEL, None) and n != 1}
        gone = sorted(places.difference(own))
        # What takes the place of an axis has its number, so that terms of a sum agree.
        numbers = iter([*gone, *range(_NEW_AXES, _NEW_AXES + len(own))])
        after = zip(own, made.aval.shape, strict=True)
        found = tuple(next(numbers) if a is None and n != 1 else a for a, n in after)
        return cls(found, combined_axes(layer, value, layout))


def _labels(layer: Layer, value: Value, given: Labels) -> Labels | None:
    lineages, _ = walk(layer.nodes, {value: {value: given}})
    return lineages.get(layer.outputs[0], {}).get(value)


def combined_axes(layer: Layer, value: Value, layout: Axes) -> frozenset[int | None]:
    """Returns the axes of positions along which a layer adds or multiplies several of a value."""
    found = set[int | None]()
    for axis, (place, n) in enumerate(zip(layout, value.aval.shape, strict=True)):
        if place in (BATCH, CHANNEL, None) or n == 1:
            continue
        # Were all positions along it the same entry, they would meet there.
        alike: Labels = tuple(SHARED if i == axis else i for i in range(len(layout)))
        meetings = walk(layer.nodes, {value: {value: alike}})[1]
        if any(one.along for met in meetings.values() for one in met):
            found.add(place)
    return frozenset(found)


def is_unruled(layer: Layer, value: Value, layout: Axes) -> bool:
    """Returns whether a layer combines positions in a way that no rule is meant for.

    Signs of a kernel's entries differ, so that a sum over positions by one (flattened, or of
    tokens) hardly adds up what they share; attention is warned of where a stream adds it up.
    """
    if layer.mark or layer.kind not in _COMBINING or isinstance(layer, WholeLayer):
        return False
    return bool(layer.nodes and combined_axes(layer, value, layout))


def keeps_positions(layer: Layer, value: Value, layout: Axes) -> bool:
    """Returns whether a layer makes each position of its result of all channels at the same one."""
    if not layer.nodes or len(layer.outputs) != 1:
        return False
    if layer.outputs[0].aval.shape != value.aval.shape:
        return False
    labels = _labels(layer, value, identity(value.aval.shape)) or ()
    pairs = zip(labels, layout, value.aval.shape, strict=True)
    return all(x == i or a == CHANNEL or n == 1 for i, (x, a, n) in enumerate(pairs))


def variance_of(terms: Sequence[NoiseTerm], by: LinearMap | None = None) -> Array:
    """Computes the variances of entries, or of what a linear map makes of them.

    Args:
        terms: What the noise of the entries is made of; one of them at most has a source.
        by: The map; None for the entries themselves.
    """
    by = by or LinearMap.identity()
    found = []
    for term in terms:
        if isinstance(term, RestTerm):
            found.append(by.squared(term.gate**2 * term.variance))
            continue
        if isinstance(term, MixedTerm):
            found.append(variance_of([term.inner], term.map_to(by)))
            continue
        if isinstance(term, CrossedTerm):
            # Channel by channel of the source, as if these were independent.
            spreads = jnp.moveaxis(term.steps, -2, 0) * term.gate
            deviations = root(term.variance).T
            found += [
                by.forward(one * std.reshape(-1, *(1,) * (one.ndim - 1))) ** 2
                for one, std in zip(spreads, deviations, strict=True)
            ]
            continue
        found.append(by.forward(term.gate * spread(root(term.variance), term.gate)) ** 2)
        if isinstance(term, ContractionTerm):
            found.append(_of_kernel(by, term))
    return sum(found[1:], start=found[0])


def _of_kernel(by: LinearMap, term: ContractionTerm) -> Array:
    """Computes what a kernel's own noise adds, a weight of each channel after the other."""
    read, gate = term.read, term.gate
    windows = read.windows(term.image)
    deviations = root(read.by_group(term.kernel[1]))
    rows = jnp.moveaxis(windows, (2, 4), (0, 1)).reshape(-1, *windows.shape[:2], read.groups, 1)
    by_weight = deviations.reshape(-1, *deviations.shape[2:])

    def add(total: Array, weight: tuple[Array, Array]) -> tuple[Array, None]:
        row, deviation = weight
        return total + by.forward((row * deviation).reshape(gate.shape) * gate) ** 2, None

    return lax.scan(add, jnp.zeros_like(by.forward(gate)), (rows, by_weight))[0]
