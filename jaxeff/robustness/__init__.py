"""How robust a network is to noise: curves, midpoints, areas, activations, sensitivities.

curve = accuracy_curve(key, f, params, lambda level: {"*": Additive(level)}, levels, data)
midpoint = fit_midpoint(curve.levels, curve.draws)        # of a trained model
midpoint = fit_midpoint(levels, result.scores["accuracy"])  # of a sweep over seeds
"""

from jaxeff.robustness.curve import Curve, accuracy_curve, noisy_accuracy, summarize
from jaxeff.robustness.logistic import logistic
from jaxeff.robustness.midpoint import Midpoint, fit_midpoint

__all__ = [
    "Curve",
    "Midpoint",
    "accuracy_curve",
    "fit_midpoint",
    "logistic",
    "noisy_accuracy",
    "summarize",
]
