"""Moment rules per operation: products, extrema, pooling, softmax, normalization, closed forms."""

from jaxeff.moment_propagation.rules import _arithmetic as arithmetic
from jaxeff.moment_propagation.rules import _clark as clark
from jaxeff.moment_propagation.rules import _extremes as extremes
from jaxeff.moment_propagation.rules import _normalization as normalization
from jaxeff.moment_propagation.rules import _softmax as softmax
from jaxeff.moment_propagation.rules._arithmetic import map_linear
from jaxeff.moment_propagation.rules._clark import maximum
from jaxeff.moment_propagation.rules._closed_forms import exponential
from jaxeff.moment_propagation.rules._composites import Attribute, composite
from jaxeff.moment_propagation.rules._linear import bilinear
from jaxeff.moment_propagation.rules._piecewise import piecewise, relu
from jaxeff.moment_propagation.rules._pooling import window, window_max, window_mean
from jaxeff.moment_propagation.rules._quadrature import gauss_legendre, gauss_pair
from jaxeff.moment_propagation.rules._table import (
    DATA_MOVEMENT,
    DISCRETE,
    RULES,
    UNARY,
    Rule,
    data_movement,
    read_window,
    shared_operand,
)

__all__ = [
    "DATA_MOVEMENT",
    "DISCRETE",
    "RULES",
    "UNARY",
    "Attribute",
    "Rule",
    "arithmetic",
    "bilinear",
    "clark",
    "composite",
    "data_movement",
    "exponential",
    "extremes",
    "gauss_legendre",
    "gauss_pair",
    "map_linear",
    "maximum",
    "normalization",
    "piecewise",
    "read_window",
    "relu",
    "shared_operand",
    "softmax",
    "window",
    "window_max",
    "window_mean",
]
