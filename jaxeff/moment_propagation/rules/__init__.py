"""Moment rules per operation: products, extrema, pooling, softmax, normalization, closed forms."""

from jaxeff.moment_propagation._values import inverse_std, near, tail
from jaxeff.moment_propagation.rules import _arithmetic as arithmetic
from jaxeff.moment_propagation.rules import _extremes as extremes
from jaxeff.moment_propagation.rules import _normalization as normalization
from jaxeff.moment_propagation.rules._activations import (
    Attribute,
    composite,
    exponential,
    gauss_legendre,
    gauss_pair,
    piecewise,
    relu,
)
from jaxeff.moment_propagation.rules._arithmetic import bilinear, map_linear
from jaxeff.moment_propagation.rules._extremes import maximum, window, window_max, window_mean
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
    "composite",
    "data_movement",
    "exponential",
    "extremes",
    "gauss_legendre",
    "gauss_pair",
    "inverse_std",
    "map_linear",
    "maximum",
    "near",
    "normalization",
    "piecewise",
    "read_window",
    "relu",
    "shared_operand",
    "tail",
    "window",
    "window_max",
    "window_mean",
]
