"""Random arrays: means with variances, raw moments or covariances, and their errors."""

from jaxeff.moment_propagation.values._errors import (
    AtMean,
    DependenceError,
    MomentsError,
    MomentsWarning,
    at_mean,
    check_real,
    no_rule,
)
from jaxeff.moment_propagation.values._gaussian import (
    Gaussian,
    check_gaussian,
    is_gaussian,
    sample_all,
)
from jaxeff.moment_propagation.values._joint_gaussian import JointGaussian, is_joint_gaussian
from jaxeff.moment_propagation.values._normal import cdf, inverse_std, near, tail
from jaxeff.moment_propagation.values._raw import (
    Activated,
    Random,
    RawMoments,
    is_random,
    to_raw,
    to_variance,
)

__all__ = [
    "Activated",
    "AtMean",
    "DependenceError",
    "Gaussian",
    "JointGaussian",
    "MomentsError",
    "MomentsWarning",
    "Random",
    "RawMoments",
    "at_mean",
    "cdf",
    "check_gaussian",
    "check_real",
    "inverse_std",
    "is_gaussian",
    "is_joint_gaussian",
    "is_random",
    "near",
    "no_rule",
    "sample_all",
    "tail",
    "to_raw",
    "to_variance",
]
