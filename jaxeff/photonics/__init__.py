"""Photonic computing: chaotic light as a source of tunable randomness."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff.photonics.chaotic_light import ChaoticLight
from jaxeff.photonics.correlation import chaotic_intensity, effective_samples, excess_share
from jaxeff.photonics.element import PhotonicElement, ReadElement
from jaxeff.photonics.encoding import noise_for
from jaxeff.photonics.learning import (
    divergence,
    level_logits,
    light_divergence,
    per_activation,
    with_levels,
)
from jaxeff.photonics.measured import Measured, fit_light
from jaxeff.photonics.photon_counts import MODES, photon_counts
from jaxeff.photonics.photonic import photonic
from jaxeff.photonics.pooling import (
    gaussian_noise,
    physical_sample,
    probabilistic_pooling,
    quant_relu,
)
from jaxeff.photonics.pulses import noise_sigma, pattern_sigma, sigma_bounds, slot_pattern
from jaxeff.photonics.reading import read_out
from jaxeff.photonics.weights import PhotonicWeights, transmissions

if TYPE_CHECKING:
    from jaxeff.photonics.bose_einstein import BoseEinstein

__all__ = [
    "MODES",
    "BoseEinstein",
    "ChaoticLight",
    "Measured",
    "PhotonicElement",
    "PhotonicWeights",
    "ReadElement",
    "chaotic_intensity",
    "divergence",
    "effective_samples",
    "excess_share",
    "fit_light",
    "gaussian_noise",
    "level_logits",
    "light_divergence",
    "noise_for",
    "noise_sigma",
    "pattern_sigma",
    "per_activation",
    "photon_counts",
    "photonic",
    "physical_sample",
    "probabilistic_pooling",
    "quant_relu",
    "read_out",
    "sigma_bounds",
    "slot_pattern",
    "transmissions",
    "with_levels",
]


def __getattr__(name: str) -> Any:
    if name == "BoseEinstein":  # the only one that needs distrax, which takes longer than all else
        return import_module("jaxeff.photonics.bose_einstein").BoseEinstein
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
