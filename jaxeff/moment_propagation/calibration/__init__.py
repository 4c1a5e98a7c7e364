"""Factors that take propagated variances to measured ones: their forms, and which one is chosen."""

from jaxeff.moment_propagation.calibration._calibrated import (
    SHARED,
    Calibrated,
    factor_of,
    is_result,
    is_scaled,
    may_scale,
    of_shared_pass,
    result_name,
    uncalibrated,
    with_result_factors,
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
    "SHARED",
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
    "is_result",
    "is_scaled",
    "joined",
    "may_scale",
    "of_shared_pass",
    "result_name",
    "state_error",
    "uncalibrated",
    "with_regressions",
    "with_result_factors",
]
