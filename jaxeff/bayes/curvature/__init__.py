"""Laplace approximations: curvatures of a likelihood, precisions, posteriors."""

from jaxeff.bayes.curvature._fit import laplace
from jaxeff.bayes.curvature._laplace import Laplace
from jaxeff.bayes.curvature._precision import LaplaceWarning

__all__ = ["Laplace", "LaplaceWarning", "laplace"]
