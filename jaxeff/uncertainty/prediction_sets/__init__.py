"""Conformal prediction: sets of classes and intervals that hold the truth as often as was asked."""

from jaxeff.uncertainty.prediction_sets._classes import APS, LAC, RAPS
from jaxeff.uncertainty.prediction_sets._conformal import (
    ConformalCalibration,
    conformal,
    conformalize,
    covered,
)
from jaxeff.uncertainty.prediction_sets._intervals import (
    CQR,
    AbsoluteResidual,
    NormalizedResidual,
    PredictionInterval,
)
from jaxeff.uncertainty.prediction_sets._method import ConformalMethod

__all__ = [
    "APS",
    "CQR",
    "LAC",
    "RAPS",
    "AbsoluteResidual",
    "ConformalCalibration",
    "ConformalMethod",
    "NormalizedResidual",
    "PredictionInterval",
    "conformal",
    "conformalize",
    "covered",
]
