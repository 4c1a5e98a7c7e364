"""Scores of channels by group, higher for more important ones."""

from jaxeff.pruning.scores._activations import corrected_weights as corrected_weights
from jaxeff.pruning.scores._activations import determinantal as determinantal
from jaxeff.pruning.scores._activations import reconstruction as reconstruction
from jaxeff.pruning.scores._weights import Score as Score
from jaxeff.pruning.scores._weights import batch_norm_scale as batch_norm_scale
from jaxeff.pruning.scores._weights import geometric_median as geometric_median
from jaxeff.pruning.scores._weights import l1 as l1
from jaxeff.pruning.scores._weights import l2 as l2
from jaxeff.pruning.scores._weights import optimal_brain_damage as optimal_brain_damage
from jaxeff.pruning.scores._weights import random as random
from jaxeff.pruning.scores._weights import scales as scales
from jaxeff.pruning.scores._weights import signal_to_noise as signal_to_noise
from jaxeff.pruning.scores._weights import summed as summed
from jaxeff.pruning.scores._weights import taylor as taylor
