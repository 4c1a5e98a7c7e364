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
from jaxeff.compression.calibration import calibrate
from jaxeff.compression.integer import Int
from jaxeff.compression.lsq import LSQ
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
from jaxeff.compression.uniform import Uniform

__all__ = [
    "LSQ",
    "Apart",
    "BitSensitivity",
    "Grid",
    "HessianTrace",
    "Int",
    "Quantization",
    "QuantizationErrors",
    "Quantizer",
    "RunningRange",
    "Switched",
    "Tensor",
    "Uniform",
    "allocate_bits",
    "bit_policy",
    "calibrate",
    "dequantize",
    "each_policy",
    "fake_quantize",
    "grid",
    "hessian_sensitivity",
    "hessian_trace",
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
    "signal_to_noise_bits",
    "straight_through",
    "value_range",
]
