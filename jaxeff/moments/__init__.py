"""Moment propagation: the mean and variance of a network's output in a single pass."""

from jaxeff.moments.errors import MomentsError
from jaxeff.moments.gaussian import Gaussian, check_gaussian, is_gaussian
from jaxeff.moments.transform import moments

__all__ = ["Gaussian", "MomentsError", "check_gaussian", "is_gaussian", "moments"]
