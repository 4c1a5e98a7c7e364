"""Compression: fewer bits, fewer channels."""

from jaxeff.compression.apart import Apart
from jaxeff.compression.bases import BinaryBases
from jaxeff.compression.binary import Binary
from jaxeff.compression.calibration import calibrate
from jaxeff.compression.codebook import Codebook
from jaxeff.compression.half_wave import HalfWave, half_wave_levels
from jaxeff.compression.incremental import Incremental, incrementally, shares
from jaxeff.compression.integer import Int
from jaxeff.compression.learned_basis import LearnedBasis
from jaxeff.compression.lsq import LSQ
from jaxeff.compression.powers_of_two import PowersOfTwo
from jaxeff.compression.protocol import Quantization, Quantizer, Tensor
from jaxeff.compression.quantization import (
    Grid,
    dequantize,
    fake_quantize,
    grid,
    quantize,
    round_through,
    straight_through,
    value_range,
)
from jaxeff.compression.quantized import quantized
from jaxeff.compression.running import RunningRange, initial_ranges, running
from jaxeff.compression.start import init, learned
from jaxeff.compression.ternary import Ternary, TrainedTernary
from jaxeff.compression.uniform import Uniform
from jaxeff.compression.updated import updated

__all__ = [
    "LSQ",
    "Apart",
    "Binary",
    "BinaryBases",
    "Codebook",
    "Grid",
    "HalfWave",
    "Incremental",
    "Int",
    "LearnedBasis",
    "PowersOfTwo",
    "Quantization",
    "Quantizer",
    "RunningRange",
    "Tensor",
    "Ternary",
    "TrainedTernary",
    "Uniform",
    "calibrate",
    "dequantize",
    "fake_quantize",
    "grid",
    "half_wave_levels",
    "incrementally",
    "init",
    "initial_ranges",
    "learned",
    "quantize",
    "quantized",
    "round_through",
    "running",
    "shares",
    "straight_through",
    "updated",
    "value_range",
]
