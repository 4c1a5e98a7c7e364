"""Scores of channels by group, higher for more important ones."""

from jaxeff.pruning.scores._activations import corrected_weights, determinantal, reconstruction
from jaxeff.pruning.scores._weights import (
    Score,
    batch_norm_scale,
    geometric_median,
    l1,
    l2,
    optimal_brain_damage,
    random,
    scales,
    signal_to_noise,
    summed,
    taylor,
)

__all__ = [
    "Score",
    "batch_norm_scale",
    "corrected_weights",
    "determinantal",
    "geometric_median",
    "l1",
    "l2",
    "optimal_brain_damage",
    "random",
    "reconstruction",
    "scales",
    "signal_to_noise",
    "summed",
    "taylor",
]
