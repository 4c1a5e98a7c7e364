"""Gates: numbers that multiply channels, learnt with the parameters, and thresholded to a plan.

`Plan`, `masked` and `pruned` take booleans or gates alike; what is here draws and penalises gates.
"""

from jaxeff.pruning.gates.dropout import DropoutGates, dropout_divergence
from jaxeff.pruning.gates.hard_concrete import HardConcrete

__all__ = ["DropoutGates", "HardConcrete", "dropout_divergence"]
