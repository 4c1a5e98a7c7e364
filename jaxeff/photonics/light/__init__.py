"""Statistics of chaotic light: photon counts, correlation, detectors, pulses."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff.photonics.light._carrier import Carrier
from jaxeff.photonics.light._correlation import chaotic_intensity, effective_samples, excess_share
from jaxeff.photonics.light._detector import read_pulses, rounded_pulses, with_intensity_noise
from jaxeff.photonics.light._photon_counts import MODES, TINY, photon_counts, poisson_counts
from jaxeff.photonics.light._pulses import (
    excess,
    noise_sigma,
    pattern_sigma,
    sigma_bounds,
    slot_correlation,
    slot_pattern,
)

if TYPE_CHECKING:
    from jaxeff.photonics.light._bose_einstein import BoseEinstein

__all__ = [
    "MODES",
    "TINY",
    "BoseEinstein",
    "Carrier",
    "chaotic_intensity",
    "effective_samples",
    "excess",
    "excess_share",
    "noise_sigma",
    "pattern_sigma",
    "photon_counts",
    "poisson_counts",
    "read_pulses",
    "rounded_pulses",
    "sigma_bounds",
    "slot_correlation",
    "slot_pattern",
    "with_intensity_noise",
]


def __getattr__(name: str) -> Any:
    if name == "BoseEinstein":  # distrax takes longer to import than all else
        return import_module("jaxeff.photonics.light._bose_einstein").BoseEinstein
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
