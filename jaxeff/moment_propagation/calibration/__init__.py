"""Factors that take propagated variances to measured ones: their forms, and which one is chosen."""

from jaxeff.moment_propagation.calibration._calibrated import (
    Calibrated,
    factor_of,
    is_scaled,
    may_scale,
    result_name,
    uncalibrated,
)
from jaxeff.moment_propagation.calibration._choice import (
    FORMS,
    FactorPass,
    Residuals,
    choose,
    state_error,
)
from jaxeff.moment_propagation.calibration._groups import Groups, groups_of, joined
from jaxeff.moment_propagation.calibration._regression import (
    VarianceTable,
    at_regression,
    fit_regression,
    with_regressions,
)

__all__ = [
    "FORMS",
    "Calibrated",
    "FactorPass",
    "Groups",
    "Residuals",
    "VarianceTable",
    "at_regression",
    "choose",
    "factor_of",
    "fit_regression",
    "groups_of",
    "is_scaled",
    "joined",
    "may_scale",
    "result_name",
    "state_error",
    "uncalibrated",
    "with_regressions",
]
