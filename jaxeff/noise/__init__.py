"""Analog noise: what imprecise hardware does to a network's values."""

from jaxeff.noise.gaussian import Additive, Mixed, Multiplicative, Noise
from jaxeff.noise.noisy import noisy

__all__ = ["Additive", "Mixed", "Multiplicative", "Noise", "noisy"]
