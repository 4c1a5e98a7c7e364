"""Photonic computing: chaotic light as a source of tunable randomness."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxeff.photonics._crossbar import PhotonicProduct as PhotonicProduct
from jaxeff.photonics._crossbar import PhotonicWeights as PhotonicWeights
from jaxeff.photonics._crossbar import transmissions as transmissions
from jaxeff.photonics._detector import Measured as Measured
from jaxeff.photonics._detector import fit_light as fit_light
from jaxeff.photonics._interferometers import InterferometerMesh as InterferometerMesh
from jaxeff.photonics._interferometers import MeshPhases as MeshPhases
from jaxeff.photonics._interferometers import mesh_matrix as mesh_matrix
from jaxeff.photonics._interferometers import mesh_phases as mesh_phases
from jaxeff.photonics._learning import divergence as divergence
from jaxeff.photonics._learning import level_logits as level_logits
from jaxeff.photonics._learning import levels_per_activation as levels_per_activation
from jaxeff.photonics._learning import light_divergence as light_divergence
from jaxeff.photonics._learning import replace_levels as replace_levels
from jaxeff.photonics._light import MODES as MODES
from jaxeff.photonics._light import chaotic_intensity as chaotic_intensity
from jaxeff.photonics._light import effective_samples as effective_samples
from jaxeff.photonics._light import excess_share as excess_share
from jaxeff.photonics._light import noise_sigma as noise_sigma
from jaxeff.photonics._light import pattern_sigma as pattern_sigma
from jaxeff.photonics._light import photon_counts as photon_counts
from jaxeff.photonics._light import sigma_bounds as sigma_bounds
from jaxeff.photonics._light import slot_pattern as slot_pattern
from jaxeff.photonics._photonic import photonic as photonic
from jaxeff.photonics._photonic import read_out as read_out
from jaxeff.photonics._pooling import ChaoticLight as ChaoticLight
from jaxeff.photonics._pooling import PhotonicElement as PhotonicElement
from jaxeff.photonics._pooling import ReadElement as ReadElement
from jaxeff.photonics._pooling import gaussian_noise as gaussian_noise
from jaxeff.photonics._pooling import noise_for as noise_for
from jaxeff.photonics._pooling import physical_sample as physical_sample
from jaxeff.photonics._pooling import probabilistic_pooling as probabilistic_pooling
from jaxeff.photonics._pooling import quant_relu as quant_relu

if TYPE_CHECKING:
    from jaxeff.photonics._bose_einstein import BoseEinstein as BoseEinstein


def __getattr__(name: str) -> Any:
    if name == "BoseEinstein":  # the only one that needs distrax, which takes longer than all else
        return import_module("jaxeff.photonics._bose_einstein").BoseEinstein
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
