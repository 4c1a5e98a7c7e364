"""Compression: fewer bits, fewer channels."""

from jaxeff.compression.allocation import (
    BitSensitivity,
    HessianTrace,
    QuantizationErrors,
    allocate_bits,
    bit_policy,
    each_policy,
    hessian_sensitivity,
    hessian_trace,
    kl_sensitivity,
    noise_to_signal,
    quantization_errors,
    signal_to_noise_bits,
)
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
from jaxeff.compression.switched import Switched
from jaxeff.compression.ternary import Ternary, TrainedTernary
from jaxeff.compression.uniform import Uniform
from jaxeff.compression.updated import updated

__all__ = [
    "LSQ",
    "Apart",
    "Binary",
    "BinaryBases",
    "BitSensitivity",
    "Codebook",
    "Grid",
    "HalfWave",
    "HessianTrace",
    "Incremental",
    "Int",
    "LearnedBasis",
    "PowersOfTwo",
    "Quantization",
    "QuantizationErrors",
    "Quantizer",
    "RunningRange",
    "Switched",
    "Tensor",
    "Ternary",
    "TrainedTernary",
    "Uniform",
    "allocate_bits",
    "bit_policy",
    "calibrate",
    "dequantize",
    "each_policy",
    "fake_quantize",
    "grid",
    "half_wave_levels",
    "hessian_sensitivity",
    "hessian_trace",
    "incrementally",
    "init",
    "initial_ranges",
    "kl_sensitivity",
    "learned",
    "noise_to_signal",
    "quantization_errors",
    "quantize",
    "quantized",
    "round_through",
    "running",
    "shares",
    "signal_to_noise_bits",
    "straight_through",
    "updated",
    "value_range",
]
