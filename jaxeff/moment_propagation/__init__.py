"""Moment propagation: the mean and variance of a network's output in a single pass."""

from jaxeff.moment_propagation._calibrate import calibrate_moments
from jaxeff.moment_propagation._calibrated import Calibrated
from jaxeff.moment_propagation._moments import moments, sampled
from jaxeff.moment_propagation._moments_check import (
    MomentsCheck,
    assumptions,
    measure_assumptions,
    moments_check,
)
from jaxeff.moment_propagation._values import (
    Gaussian,
    JointGaussian,
    MomentsError,
    MomentsWarning,
    check_gaussian,
    is_gaussian,
    is_joint_gaussian,
)
from jaxeff.moment_propagation.dependence import Assumption, Assumptions

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
    "measure_assumptions",
    "moments",
    "moments_check",
    "sampled",
]
