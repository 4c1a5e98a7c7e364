"""How robust a network is to noise: curves, midpoints, areas, activations, sensitivities.

curve = accuracy_curve(key, f, params, lambda level: {"*": Additive(level)}, levels, data)
midpoint = fit_midpoint(curve.levels, curve.draws)        # of a trained model
midpoint = fit_midpoint(levels, result.scores["accuracy"])  # of a sweep over seeds
"""

from jaxeff.robustness.activations import activations, bin_edges
from jaxeff.robustness.area import envelope, preserved_accuracy, robustness_area
from jaxeff.robustness.bimodality import UNIMODAL, Bimodality, Binarized, bimodality
from jaxeff.robustness.curve import Curve, accuracy_curve, noisy_accuracy, summarize
from jaxeff.robustness.logistic import logistic
from jaxeff.robustness.midpoint import Midpoint, fit_midpoint
from jaxeff.robustness.repetition import allocate_repetitions
from jaxeff.robustness.weights import weight_growth, weight_rms

__all__ = [
    "UNIMODAL",
    "Bimodality",
    "Binarized",
    "Curve",
    "Midpoint",
    "accuracy_curve",
    "activations",
    "allocate_repetitions",
    "bimodality",
    "bin_edges",
    "envelope",
    "fit_midpoint",
    "logistic",
    "noisy_accuracy",
    "preserved_accuracy",
    "robustness_area",
    "summarize",
    "weight_growth",
    "weight_rms",
]
