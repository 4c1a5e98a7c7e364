"""Models of noise: what is drawn anew, what belongs to a device, memory cells, executions."""

from jaxeff.noise.models._cells import (
    ChargeTrap,
    MemoryCell,
    PhaseChange,
    ProgrammedCell,
    ResistiveRAM,
    StaticRAM,
)
from jaxeff.noise.models._device import Drift, Mismatch, Telegraph
from jaxeff.noise.models._executions import ReadOut, Repeated
from jaxeff.noise.models._independent import (
    Additive,
    Dropout,
    Mixed,
    Multiplicative,
    Quantization,
    UniformNoise,
)
from jaxeff.noise.models._protocol import (
    Draw,
    DrawnNoise,
    MomentNoise,
    Noise,
    NoiseModel,
    Place,
    SiteNoise,
    check_noise,
    drawn_together,
    fits,
    is_counted,
    perturb_at,
    place,
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
