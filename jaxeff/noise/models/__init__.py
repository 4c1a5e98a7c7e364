"""Distributions of noise, one a file: additive, multiplicative, drift, dropout, device mismatch."""

from jaxeff.noise.models._draws import Draw, DrawnNoise, drawn_together, fits, is_counted
from jaxeff.noise.models._drift import Drift
from jaxeff.noise.models._dropout import Dropout
from jaxeff.noise.models._gaussian import Additive, Mixed, Multiplicative
from jaxeff.noise.models._mismatch import Mismatch
from jaxeff.noise.models._model import NoiseModel, Place
from jaxeff.noise.models._protocol import (
    MomentNoise,
    Noise,
    SiteNoise,
    check_noise,
    perturb_at,
    place,
)
from jaxeff.noise.models._read_out import ReadOut
from jaxeff.noise.models._repeated import Repeated
from jaxeff.noise.models._roundoff import Quantization, UniformNoise
from jaxeff.noise.models._telegraph import Telegraph
from jaxeff.noise.models.cells import (
    ChargeTrap,
    MemoryCell,
    PhaseChange,
    ProgrammedCell,
    ResistiveRAM,
    StaticRAM,
)

__all__ = [
    "Additive",
    "ChargeTrap",
    "Draw",
    "DrawnNoise",
    "Drift",
    "Dropout",
    "MemoryCell",
    "Mismatch",
    "Mixed",
    "MomentNoise",
    "Multiplicative",
    "Noise",
    "NoiseModel",
    "PhaseChange",
    "Place",
    "ProgrammedCell",
    "Quantization",
    "ReadOut",
    "Repeated",
    "ResistiveRAM",
    "SiteNoise",
    "StaticRAM",
    "Telegraph",
    "UniformNoise",
    "check_noise",
    "drawn_together",
    "fits",
    "is_counted",
    "perturb_at",
    "place",
]
