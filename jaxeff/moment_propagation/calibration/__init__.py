"""Factors that take propagated variances to measured ones: their forms, and which one is chosen."""

from jaxeff.moment_propagation.calibration._calibrated import (
    Calibrated,
    factor_of,
    is_scaled,
    may_scale,
    result_name,
    uncalibrated,
)
from jaxeff.moment_propagation.calibration._choice import FORMS, FactorPass, choose, examples_of
from jaxeff.moment_propagation.calibration._levels import at_level, fit_level, with_levels

__all__ = [
    "FORMS",
    "Calibrated",
    "FactorPass",
    "at_level",
    "choose",
    "examples_of",
    "factor_of",
    "fit_level",
    "is_scaled",
    "may_scale",
    "result_name",
    "uncalibrated",
    "with_levels",
]
