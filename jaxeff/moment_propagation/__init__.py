"""Moment propagation: the mean and variance of a network's output in a single pass."""

from jaxeff.moment_propagation.assumption import Assumption, Assumptions
from jaxeff.moment_propagation.assumptions import assumptions
from jaxeff.moment_propagation.calibrate import calibrate_moments
from jaxeff.moment_propagation.calibrated import Calibrated
from jaxeff.moment_propagation.errors import MomentsError
from jaxeff.moment_propagation.gaussian import Gaussian, check_gaussian, is_gaussian
from jaxeff.moment_propagation.joint_gaussian import JointGaussian, is_joint
from jaxeff.moment_propagation.sampled import sampled
from jaxeff.moment_propagation.transform import moments

__all__ = [
    "Assumption",
    "Assumptions",
    "Calibrated",
    "Gaussian",
    "JointGaussian",
    "MomentsError",
    "assumptions",
    "calibrate_moments",
    "check_gaussian",
    "is_gaussian",
    "is_joint",
    "moments",
    "sampled",
]
