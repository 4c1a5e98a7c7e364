"""Layers that Flax lacks: activations, pooling, residual blocks, splines."""

from jaxeff.nn.layers._activations import ACTIVATIONS, activation, prelu
from jaxeff.nn.layers._pooling import avg_pool
from jaxeff.nn.layers._residual import Block, bn, conv
from jaxeff.nn.layers._spline import SplineActivation

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
