"""Layers that Flax lacks: activations, pooling, residual blocks, splines."""

from jaxeff.nn.layers._layers import (
    ACTIVATIONS,
    Block,
    SplineActivation,
    activation,
    avg_pool,
    bn,
    conv,
    prelu,
)

__all__ = [
    "ACTIVATIONS",
    "Block",
    "SplineActivation",
    "activation",
    "avg_pool",
    "bn",
    "conv",
    "prelu",
]
