"""Laplace approximations: curvatures of a likelihood, precisions, posteriors."""

from jaxeff.bayes.curvature._fit import laplace
from jaxeff.bayes.curvature._laplace import Laplace

__all__ = ["Laplace", "laplace"]
