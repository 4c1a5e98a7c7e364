"""Scores of channels by group, higher for more important ones; one file each."""

from jaxeff.pruning.scores._batch_norm import batch_norm_scale, scales
from jaxeff.pruning.scores._determinantal import determinantal
from jaxeff.pruning.scores._geometric_median import geometric_median
from jaxeff.pruning.scores._magnitude import l1, l2
from jaxeff.pruning.scores._random import random
from jaxeff.pruning.scores._reconstruction import corrected_weights, reconstruction
from jaxeff.pruning.scores._sensitivity import optimal_brain_damage, taylor
from jaxeff.pruning.scores._signal_to_noise import signal_to_noise
from jaxeff.pruning.scores._summing import Score, summed

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
