"""Moment rules per operation: products, extrema, pooling, softmax, normalization, closed forms."""

from jaxeff.moment_propagation._values import inverse_std as inverse_std
from jaxeff.moment_propagation._values import near as near
from jaxeff.moment_propagation._values import tail as tail
from jaxeff.moment_propagation.rules import _arithmetic as arithmetic  # noqa: F401
from jaxeff.moment_propagation.rules import _extremes as extremes  # noqa: F401
from jaxeff.moment_propagation.rules import _normalization as normalization  # noqa: F401
from jaxeff.moment_propagation.rules._activations import Attribute as Attribute
from jaxeff.moment_propagation.rules._activations import composite as composite
from jaxeff.moment_propagation.rules._activations import exponential as exponential
from jaxeff.moment_propagation.rules._activations import gauss_legendre as gauss_legendre
from jaxeff.moment_propagation.rules._activations import gauss_pair as gauss_pair
from jaxeff.moment_propagation.rules._activations import piecewise as piecewise
from jaxeff.moment_propagation.rules._activations import relu as relu
from jaxeff.moment_propagation.rules._arithmetic import bilinear as bilinear
from jaxeff.moment_propagation.rules._arithmetic import map_linear as map_linear
from jaxeff.moment_propagation.rules._extremes import maximum as maximum
from jaxeff.moment_propagation.rules._extremes import window_max as window_max
from jaxeff.moment_propagation.rules._extremes import window_mean as window_mean
from jaxeff.moment_propagation.rules._smooth import gelu as gelu
from jaxeff.moment_propagation.rules._smooth import gelu_in_short as gelu_in_short
from jaxeff.moment_propagation.rules._smooth import sigmoid as sigmoid
from jaxeff.moment_propagation.rules._smooth import silu as silu
from jaxeff.moment_propagation.rules._smooth import silu_in_short as silu_in_short
from jaxeff.moment_propagation.rules._smooth import softplus as softplus
from jaxeff.moment_propagation.rules._smooth import tanh_gelu as tanh_gelu
from jaxeff.moment_propagation.rules._table import DATA_MOVEMENT as DATA_MOVEMENT
from jaxeff.moment_propagation.rules._table import TABLE as TABLE
from jaxeff.moment_propagation.rules._table import Kind as Kind
from jaxeff.moment_propagation.rules._table import Row as Row
from jaxeff.moment_propagation.rules._table import Rule as Rule
from jaxeff.moment_propagation.rules._table import data_movement as data_movement
from jaxeff.moment_propagation.rules._table import is_pooled as is_pooled
from jaxeff.moment_propagation.rules._table import kind_of as kind_of
from jaxeff.moment_propagation.rules._table import read_window as read_window
