"""Moment propagation: the mean and variance of a network's output in a single pass."""

from jaxeff.moments.assumption import Assumption, Assumptions
from jaxeff.moments.assumptions import assumptions
from jaxeff.moments.calibrate import calibrate_moments
from jaxeff.moments.calibrated import Calibrated
from jaxeff.moments.errors import MomentsError
from jaxeff.moments.gaussian import Gaussian, check_gaussian, is_gaussian
from jaxeff.moments.transform import moments

__all__ = [
    "Assumption",
    "Assumptions",
    "Calibrated",
    "Gaussian",
    "MomentsError",
    "assumptions",
    "calibrate_moments",
    "check_gaussian",
    "is_gaussian",
    "moments",
]
