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
    DISCRETE,
    MOVING,
    RULES,
    UNARY,
    Rule,
    moving,
    read_window,
    twice,
)

__all__ = [
    "DISCRETE",
    "MOVING",
    "RULES",
    "UNARY",
    "Attribute",
    "Rule",
    "arithmetic",
    "bilinear",
    "clark",
    "composite",
    "exponential",
    "extremes",
    "gauss_legendre",
    "gauss_pair",
    "map_linear",
    "maximum",
    "moving",
    "normalization",
    "piecewise",
    "read_window",
    "relu",
    "softmax",
    "twice",
    "window",
    "window_max",
    "window_mean",
]
