"""Photonic computing: chaotic light as a source of tunable randomness."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff.photonics._crossbar import PhotonicProduct, PhotonicWeights, transmissions
from jaxeff.photonics._detector import Measured, fit_light
from jaxeff.photonics._learning import (
    divergence,
    level_logits,
    levels_per_activation,
    light_divergence,
    replace_levels,
)
from jaxeff.photonics._light import (
    MODES,
    chaotic_intensity,
    effective_samples,
    excess_share,
    noise_sigma,
    pattern_sigma,
    photon_counts,
    sigma_bounds,
    slot_pattern,
)
from jaxeff.photonics._photonic import photonic, read_out
from jaxeff.photonics._pooling import (
    ChaoticLight,
    PhotonicElement,
    ReadElement,
    gaussian_noise,
    noise_for,
    physical_sample,
    probabilistic_pooling,
    quant_relu,
)

if TYPE_CHECKING:
    from jaxeff.photonics._bose_einstein import BoseEinstein

__all__ = [
    "MODES",
    "BoseEinstein",
    "ChaoticLight",
    "Measured",
    "PhotonicElement",
    "PhotonicProduct",
    "PhotonicWeights",
    "ReadElement",
    "chaotic_intensity",
    "divergence",
    "effective_samples",
    "excess_share",
    "fit_light",
    "gaussian_noise",
    "level_logits",
    "levels_per_activation",
    "light_divergence",
    "noise_for",
    "noise_sigma",
    "pattern_sigma",
    "photon_counts",
    "photonic",
    "physical_sample",
    "probabilistic_pooling",
    "quant_relu",
    "read_out",
    "replace_levels",
    "sigma_bounds",
    "slot_pattern",
    "transmissions",
]


def __getattr__(name: str) -> Any:
    if name == "BoseEinstein":  # the only one that needs distrax, which takes longer than all else
        return import_module("jaxeff.photonics._bose_einstein").BoseEinstein
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
