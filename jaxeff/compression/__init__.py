"""Compression: fewer bits, fewer channels."""

from jaxeff.compression.apart import Apart
from jaxeff.compression.binary import Binary
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
from jaxeff.compression.uniform import Uniform

__all__ = [
    "LSQ",
    "Apart",
    "Binary",
    "Grid",
    "Int",
    "Quantization",
    "Quantizer",
    "RunningRange",
    "Tensor",
    "Uniform",
    "calibrate",
    "dequantize",
    "fake_quantize",
    "grid",
    "init",
    "initial_ranges",
    "learned",
    "quantize",
    "quantized",
    "round_through",
    "running",
    "straight_through",
    "value_range",
]
