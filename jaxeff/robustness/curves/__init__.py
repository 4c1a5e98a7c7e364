"""Accuracy as a function of noise: curves, their fits, and figures of them."""

from jaxeff.robustness.curves._curve import Curve as Curve
from jaxeff.robustness.curves._curve import accuracy_curve as accuracy_curve
from jaxeff.robustness.curves._curve import envelope as envelope
from jaxeff.robustness.curves._curve import noisy_accuracy as noisy_accuracy
from jaxeff.robustness.curves._curve import preserved_accuracy as preserved_accuracy
from jaxeff.robustness.curves._curve import robustness_area as robustness_area
from jaxeff.robustness.curves._curve import summarize as summarize
from jaxeff.robustness.curves._figures import draw_contour as draw_contour
from jaxeff.robustness.curves._figures import draw_curve as draw_curve
from jaxeff.robustness.curves._figures import draw_heatmap as draw_heatmap
from jaxeff.robustness.curves._figures import draw_histograms as draw_histograms
from jaxeff.robustness.curves._figures import draw_midpoints as draw_midpoints
from jaxeff.robustness.curves._midpoint import Midpoint as Midpoint
from jaxeff.robustness.curves._midpoint import fit_midpoint as fit_midpoint
from jaxeff.robustness.curves._midpoint import logistic as logistic
from jaxeff.robustness.curves._values import activations as activations
from jaxeff.robustness.curves._values import bin_edges as bin_edges
from jaxeff.robustness.curves._values import weight_growth as weight_growth
from jaxeff.robustness.curves._values import weight_rms as weight_rms
