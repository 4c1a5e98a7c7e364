"""Accuracy as a function of noise: curves, their fits, and figures of them."""

from jaxeff.robustness.curves._area import envelope, preserved_accuracy, robustness_area
from jaxeff.robustness.curves._curve import Curve, accuracy_curve, noisy_accuracy, summarize
from jaxeff.robustness.curves._figures import (
    draw_contour,
    draw_curve,
    draw_heatmap,
    draw_histograms,
    draw_midpoints,
)
from jaxeff.robustness.curves._layer_values import activations, bin_edges
from jaxeff.robustness.curves._logistic import logistic
from jaxeff.robustness.curves._midpoint import Midpoint, fit_midpoint
from jaxeff.robustness.curves._weights import weight_growth, weight_rms

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
