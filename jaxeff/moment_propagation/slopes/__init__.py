"""Slopes of results by random inputs: which inputs need them, and what stands for others."""

from jaxeff.moment_propagation.slopes._hidden import OutputLayer, last_layer, variance_through
from jaxeff.moment_propagation.slopes._kernel_slopes import RandomEntries
from jaxeff.moment_propagation.slopes._stopped import let_through

__all__ = ["OutputLayer", "RandomEntries", "last_layer", "let_through", "variance_through"]
