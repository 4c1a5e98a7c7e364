"""Moment propagation: the mean and variance of a network's output in a single pass."""

from jaxeff.moment_propagation._assumptions import assumptions
from jaxeff.moment_propagation._calibrate import calibrate_moments
from jaxeff.moment_propagation._moments import moments
from jaxeff.moment_propagation._moments_check import MomentsCheck, moments_check
from jaxeff.moment_propagation._sampled import sampled
from jaxeff.moment_propagation.calibration import Calibrated
from jaxeff.moment_propagation.dependence import Assumption, Assumptions
from jaxeff.moment_propagation.values import (
    Gaussian,
    JointGaussian,
    MomentsError,
    MomentsWarning,
    check_gaussian,
    is_gaussian,
    is_joint_gaussian,
)

__all__ = [
    "Assumption",
    "Assumptions",
    "Calibrated",
    "Gaussian",
    "JointGaussian",
    "MomentsCheck",
    "MomentsError",
    "MomentsWarning",
    "assumptions",
    "calibrate_moments",
    "check_gaussian",
    "is_gaussian",
    "is_joint_gaussian",
    "moments",
    "moments_check",
    "sampled",
]
