"""Photonic computing: chaotic light as a source of tunable randomness."""

from jaxeff.photonic.bose_einstein import MODES, BoseEinstein
from jaxeff.photonic.chaotic_light import ChaoticLight, noise_sigma, sigma_bounds, slot_pattern
from jaxeff.photonic.photonic import photonic
from jaxeff.photonic.pooling import (
    gaussian_noise,
    physical_sample,
    probabilistic_pooling,
    quant_relu,
)

__all__ = [
    "MODES",
    "BoseEinstein",
    "ChaoticLight",
    "gaussian_noise",
    "noise_sigma",
    "photonic",
    "physical_sample",
    "probabilistic_pooling",
    "quant_relu",
    "sigma_bounds",
    "slot_pattern",
]
