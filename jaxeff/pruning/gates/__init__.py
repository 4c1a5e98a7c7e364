"""Gates: numbers that multiply channels, learnt with the parameters, and thresholded to a plan.

`Plan`, `masked` and `pruned` take booleans or gates alike; what is here draws and penalises gates.
"""

from jaxeff.pruning._gates import (
    THRESHOLD,
    DropoutGates,
    HardConcrete,
    deterministic_gates,
    dropout_divergence,
    gate_location,
    hard_concrete,
    log_rate,
    open_probability,
)

__all__ = [
    "THRESHOLD",
    "DropoutGates",
    "HardConcrete",
    "deterministic_gates",
    "dropout_divergence",
    "gate_location",
    "hard_concrete",
    "log_rate",
    "open_probability",
]
