"""Repetition of noisy computations: sensitivities and budgets by layer."""

from jaxeff.robustness.repetition._budget import NoiseBudget, learn_budget, spread_levels
from jaxeff.robustness.repetition._repetition import allocate_repetitions
from jaxeff.robustness.repetition._sensitivity import (
    ONE_BIT,
    NoiseSensitivity,
    kl_sensitivity,
    tolerated_level,
)

__all__ = [
    "ONE_BIT",
    "NoiseBudget",
    "NoiseSensitivity",
    "allocate_repetitions",
    "kl_sensitivity",
    "learn_budget",
    "spread_levels",
    "tolerated_level",
]
