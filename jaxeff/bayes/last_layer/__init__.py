"""Laplace approximations of the last layer: curvature, precision, posterior."""

from jaxeff.bayes.last_layer._laplace import Laplace, laplace

__all__ = ["Laplace", "laplace"]
