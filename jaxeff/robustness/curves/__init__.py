"""Accuracy as a function of noise: curves, their fits, and figures of them."""

from jaxeff.robustness.curves._curve import (
    Curve,
    accuracy_curve,
    envelope,
    noisy_accuracy,
    preserved_accuracy,
    robustness_area,
    summarize,
)
from jaxeff.robustness.curves._figures import (
    draw_contour,
    draw_curve,
    draw_heatmap,
    draw_histograms,
    draw_midpoints,
)
from jaxeff.robustness.curves._midpoint import Midpoint, fit_midpoint, logistic
from jaxeff.robustness.curves._values import activations, bin_edges, weight_growth, weight_rms

__all__ = [
    "Curve",
    "Midpoint",
    "accuracy_curve",
    "activations",
    "bin_edges",
    "draw_contour",
    "draw_curve",
    "draw_heatmap",
    "draw_histograms",
    "draw_midpoints",
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
