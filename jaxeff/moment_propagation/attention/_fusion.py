"""Puts attention in the place of its layers, and warns where a softmax stays apart."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any

from jaxeff.core import primitives as p
from jaxeff.moment_propagation.attention._layer import AttentionLayer
from jaxeff.moment_propagation.attention._recognition import (
    Equations,
    attention_layer,
    passes,
    softmax_of,
)
from jaxeff.moment_propagation.dependence import with_layers
from jaxeff.moment_propagation.values import MomentsWarning
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Value


def fuse_attention(
    program: Program, random: Collection[Value], rules: Mapping[Any, Any]
) -> Program:
    """Puts one layer in the place of each attention's scores, softmax and products.

    Args:
        program: A program or a loop's body.
        random: Inputs of it that are random.
        rules: The user's rules by primitive: attention with one of these stays as it is.

    Returns:
        A program of the same inputs and outputs, with an `AttentionLayer` for each attention.

    Warns:
        MomentsWarning: Probabilities of random scores weigh something along the softmax's axis, and
            that isn't recognised as attention.
    """
    nodes = [n for layer in program.layers if not layer.mark for n in layer.nodes]
    if not any(n.primitive is p.exp_p for n in nodes):
        return program
    equations = Equations.of(program, random)
    layers: list[Layer] = []
    for layer in program.layers:
        found = attention_layer(equations, layer)
        if found is not None and any(n.primitive in rules for n in found.nodes):
            found = None
        elif found is None and _weighs(equations, layer):
            warnings.warn(
                f"moments: the softmax before {layer.site or layer.kind!r} wasn't recognised as "
                "attention. Its probabilities are taken as independent, and variances may be far "
                'too large or too small; moments(f, method="linear") takes into account what '
                "they share.",
                MomentsWarning,
                stacklevel=2,
            )
        layers.append(found or layer)
    if not any(isinstance(layer, AttentionLayer) for layer in layers):
        return program
    return with_layers(program, layers)


def _weighs(equations: Equations, layer: Layer) -> bool:
    """Returns whether a layer is a product that takes probabilities of random scores."""
    if layer.mark or len(layer.nodes) != 1 or layer.nodes[0].primitive is not p.dot_general_p:
        return False
    operands = [v for v in layer.nodes[0].values if v in equations.dependent]
    return any(
        softmax_of(equations, equations.behind(v, passes), None) is not None for v in operands
    )
