"""Which channels matter: scores by group, the higher the more; one file each."""

from jaxeff.pruning.scores.batch_norm import batch_norm_scale
from jaxeff.pruning.scores.determinantal import determinantal
from jaxeff.pruning.scores.geometric_median import geometric_median
from jaxeff.pruning.scores.magnitude import l1, l2
from jaxeff.pruning.scores.random import random
from jaxeff.pruning.scores.reconstruction import corrected_weights, reconstruction
from jaxeff.pruning.scores.sensitivity import optimal_brain_damage, taylor
from jaxeff.pruning.scores.signal_to_noise import signal_to_noise
from jaxeff.pruning.scores.summing import Score, summed

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
    "signal_to_noise",
    "summed",
    "taylor",
]
