"""Which channels matter: scores by group, the higher the more."""

from jaxeff.pruning.scores.magnitude import l1, l2
from jaxeff.pruning.scores.random import random
from jaxeff.pruning.scores.sensitivity import optimal_brain_damage, taylor
from jaxeff.pruning.scores.signal_to_noise import signal_to_noise
from jaxeff.pruning.scores.summing import Score, summed

__all__ = [
    "Score",
    "l1",
    "l2",
    "optimal_brain_damage",
    "random",
    "signal_to_noise",
    "summed",
    "taylor",
]
