"""How robust a network is to noise: curves, midpoints, areas, activations, sensitivities.

    curve = accuracy_curve(key, f, params, lambda level: {"*": Additive(level)}, levels, data)
    midpoint = fit_midpoint(curve.levels, curve.draws)          # of a trained model
    midpoint = fit_midpoint(levels, result.scores["accuracy"])  # of a sweep, over its seeds

    bimodality(activations(f, ["relu"])(params, x)["relu"])     # self-binarization
    kl_sensitivity(key, f, params, x, sites, levels)            # layers compared without training
    learn_budget(key, f, params, data, sites, level, ...)       # noise spread by gradient

Pictures of all of it are in `jaxeff.robustness.figures`.
"""

from jaxeff.robustness.activations import activations, bin_edges
from jaxeff.robustness.area import envelope, preserved_accuracy, robustness_area
from jaxeff.robustness.bimodality import UNIMODAL, Bimodality, Binarized, bimodality
from jaxeff.robustness.budget import Budget, learn_budget, spread_levels
from jaxeff.robustness.curve import Curve, accuracy_curve, noisy_accuracy, summarize
from jaxeff.robustness.logistic import logistic
from jaxeff.robustness.midpoint import Midpoint, fit_midpoint
from jaxeff.robustness.peaks import Peaks, peaks
from jaxeff.robustness.repetition import allocate_repetitions
from jaxeff.robustness.sensitivity import (
    ONE_BIT,
    Sensitivity,
    kl_sensitivity,
    tolerated_level,
)
from jaxeff.robustness.weights import weight_growth, weight_rms

__all__ = [
    "ONE_BIT",
    "UNIMODAL",
    "Bimodality",
    "Binarized",
    "Budget",
    "Curve",
    "Midpoint",
    "Peaks",
    "Sensitivity",
    "accuracy_curve",
    "activations",
    "allocate_repetitions",
    "bimodality",
    "bin_edges",
    "envelope",
    "fit_midpoint",
    "kl_sensitivity",
    "learn_budget",
    "logistic",
    "noisy_accuracy",
    "peaks",
    "preserved_accuracy",
    "robustness_area",
    "spread_levels",
    "summarize",
    "tolerated_level",
    "weight_growth",
    "weight_rms",
]
