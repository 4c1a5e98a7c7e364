"""Sums of some positions each: running sums, and sums of segments.

What is left of the positions has no number per channel in common, but the variance of each sum is
known from what the entries are made of (`_terms`). With L the sum, for each kernel weight, source
and rest,

    Var[L y] = sum_(t, i) v_(t, i, c) L[g x_(t, i)]^2 + Var[sum w z] L[g]^2 + L[g^2 rest].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.shared_kernels._noise import root, spread
from jaxeff.moment_propagation.shared_kernels._terms import ContractionTerm, NoiseTerm, RestTerm
from jaxeff.program import Layer
from jaxeff.program.ir import Value

PARTIAL_SUMS = {p.cumsum_p, p.scatter_add_p}


class PartialSum(NamedTuple):
    """What a layer sums.

    Attributes:
        value: The value whose entries it adds.
        axes: The axes along which it adds them.
    """

    value: Value
    axes: frozenset[int]

    @classmethod
    def of(cls, layer: Layer) -> PartialSum | None:
        """Reads a layer; None if it is no sum of parts."""
        if not layer.nodes or len(layer.outputs) != 1:
            return None
        *before, node = layer.nodes
        if node.primitive is p.cumsum_p:
            value, axes = node.inputs[0], {node.params["axis"]}
        elif node.primitive is p.scatter_add_p:
            value = node.inputs[2]
            windows = node.params["dimension_numbers"].update_window_dims
            axes = set(range(len(value.aval.shape))) - {*windows}
        else:
            return None
        if value not in layer.inputs or any(value in other.values for other in before):
            return None
        return cls(value, frozenset(axes))


def variance_of_sum(summed: Callable[[Array], Array], terms: Sequence[NoiseTerm]) -> Array:
    """Computes the variance of sums of entries.

    Args:
        summed: Sums an array `[batch, *positions, channels]`.
        terms: What the noise of the entries is made of.
    """
    found = []
    for term in terms:
        if isinstance(term, RestTerm):
            found.append(summed(term.gate**2 * term.variance))
            continue
        found.append(summed(term.gate * spread(root(term.variance), term.gate)) ** 2)
        if isinstance(term, ContractionTerm):
            found.append(_of_kernel(summed, term))
    return sum(found[1:], start=found[0])


def _of_kernel(summed: Callable[[Array], Array], term: ContractionTerm) -> Array:
    """Computes what a kernel's own noise adds, a weight of each channel after the other."""
    read, gate = term.read, term.gate
    windows = read.windows(term.image)
    deviations = root(read.by_group(term.kernel[1]))
    rows = jnp.moveaxis(windows, (2, 4), (0, 1)).reshape(-1, *windows.shape[:2], read.groups, 1)
    by_weight = deviations.reshape(-1, *deviations.shape[2:])

    def add(total: Array, weight: tuple[Array, Array]) -> tuple[Array, None]:
        row, deviation = weight
        return total + summed((row * deviation).reshape(gate.shape) * gate) ** 2, None

    return lax.scan(add, jnp.zeros_like(summed(gate)), (rows, by_weight))[0]
