"""The linear method: variances of first order, exact for any function with a derivative."""

from jaxeff.moment_propagation.linear._flow import batched_leaves as batched_leaves
from jaxeff.moment_propagation.linear._linear import LINEAR_RESULTS as LINEAR_RESULTS
from jaxeff.moment_propagation.linear._linear import linear_moments as linear_moments
from jaxeff.moment_propagation.linear._linear import results_of_an_example as results_of_an_example
