"""Analog noise: what imprecise hardware does to a network's values."""

from jaxeff.noise.gaussian import Additive, Mixed, Multiplicative
from jaxeff.noise.noisy import noisy
from jaxeff.noise.protocol import Noise

__all__ = ["Additive", "Mixed", "Multiplicative", "Noise", "noisy"]
