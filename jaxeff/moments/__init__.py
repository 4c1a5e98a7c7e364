"""Moment propagation: the mean and variance of a network's output in a single pass."""

from jaxeff.moments.gaussian import Gaussian, check_gaussian, is_gaussian

__all__ = ["Gaussian", "check_gaussian", "is_gaussian"]
