"""How often to repeat a noisy computation: sensitivities and budgets by layer."""

from jaxeff.robustness.repetition._budget import Budget, learn_budget, spread_levels
from jaxeff.robustness.repetition._repetition import allocate_repetitions
from jaxeff.robustness.repetition._sensitivity import (
    ONE_BIT,
    Sensitivity,
    kl_sensitivity,
    tolerated_level,
)

__all__ = [
    "ONE_BIT",
    "Budget",
    "Sensitivity",
    "allocate_repetitions",
    "kl_sensitivity",
    "learn_budget",
    "spread_levels",
    "tolerated_level",
]
