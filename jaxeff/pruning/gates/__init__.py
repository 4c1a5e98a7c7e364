"""Gates: numbers that multiply channels, learnt with the parameters, and thresholded to a plan.

`Plan`, `masked` and `pruned` take booleans or gates alike; what is here draws and penalises gates.
"""

from jaxeff.pruning._gates import (
    THRESHOLD,
    DropoutGates,
    HardConcrete,
    dropout_divergence,
    log_rate,
)

__all__ = ["THRESHOLD", "DropoutGates", "HardConcrete", "dropout_divergence", "log_rate"]
