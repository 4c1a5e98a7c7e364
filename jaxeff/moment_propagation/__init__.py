"""Moment propagation: the mean and variance of a network's output in a single pass."""

from jaxeff.moment_propagation._calibrate import calibrate_moments as calibrate_moments
from jaxeff.moment_propagation._calibrated import Calibrated as Calibrated
from jaxeff.moment_propagation._choice import MethodChoice as MethodChoice
from jaxeff.moment_propagation._moments import MomentFunction as MomentFunction
from jaxeff.moment_propagation._moments import moments as moments
from jaxeff.moment_propagation._moments import sampled as sampled
from jaxeff.moment_propagation._moments_check import MomentsCheck as MomentsCheck
from jaxeff.moment_propagation._moments_check import assumptions as assumptions
from jaxeff.moment_propagation._moments_check import measure_assumptions as measure_assumptions
from jaxeff.moment_propagation._moments_check import moments_check as moments_check
from jaxeff.moment_propagation._values import Gaussian as Gaussian
from jaxeff.moment_propagation._values import JointGaussian as JointGaussian
from jaxeff.moment_propagation._values import MomentsError as MomentsError
from jaxeff.moment_propagation._values import MomentsWarning as MomentsWarning
from jaxeff.moment_propagation._values import check_gaussian as check_gaussian
from jaxeff.moment_propagation._values import is_gaussian as is_gaussian
from jaxeff.moment_propagation._values import is_joint_gaussian as is_joint_gaussian
from jaxeff.moment_propagation.dependence import Assumption as Assumption
from jaxeff.moment_propagation.dependence import Assumptions as Assumptions
