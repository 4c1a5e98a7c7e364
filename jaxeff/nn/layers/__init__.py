"""Layers that Flax lacks: activations, pooling, residual blocks, splines."""

from jaxeff.nn.layers._layers import ACTIVATIONS as ACTIVATIONS
from jaxeff.nn.layers._layers import Block as Block
from jaxeff.nn.layers._layers import SplineActivation as SplineActivation
from jaxeff.nn.layers._layers import activation as activation
from jaxeff.nn.layers._layers import avg_pool as avg_pool
from jaxeff.nn.layers._layers import bn as bn
from jaxeff.nn.layers._layers import conv as conv
from jaxeff.nn.layers._layers import prelu as prelu
