"""Photonic computing: chaotic light as a source of tunable randomness."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff.photonics._learning import (
    divergence,
    level_logits,
    levels_per_activation,
    light_divergence,
    replace_levels,
)
from jaxeff.photonics._measured import Measured, fit_light
from jaxeff.photonics._photonic import photonic
from jaxeff.photonics._reading import read_out
from jaxeff.photonics.elements import (
    ChaoticLight,
    PhotonicElement,
    PhotonicProduct,
    PhotonicWeights,
    ReadElement,
    gaussian_noise,
    noise_for,
    physical_sample,
    probabilistic_pooling,
    quant_relu,
    transmissions,
)
from jaxeff.photonics.light import (
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

if TYPE_CHECKING:
    from jaxeff.photonics.light import BoseEinstein

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
        return import_module("jaxeff.photonics.light").BoseEinstein
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
