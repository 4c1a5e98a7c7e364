"""Integrates regions of connected elementwise operations as one function of their inputs."""

from jaxeff.moment_propagation.regions import _statistics as statistics
from jaxeff.moment_propagation.regions._integrate import region
from jaxeff.moment_propagation.regions._linear_patterns import linear_patterns, with_bias_vectors
from jaxeff.moment_propagation.regions._propagation import Environment, propagate

__all__ = [
    "Environment",
    "linear_patterns",
    "propagate",
    "region",
    "statistics",
    "with_bias_vectors",
]
