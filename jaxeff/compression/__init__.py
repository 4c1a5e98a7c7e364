"""Compression: fewer bits, fewer channels."""

from jaxeff.compression.calibration import calibrate
from jaxeff.compression.integer import Int
from jaxeff.compression.quantization import (
    Grid,
    dequantize,
    fake_quantize,
    grid,
    quantize,
    value_range,
)
from jaxeff.compression.quantized import quantized
from jaxeff.compression.running import RunningRange, initial_ranges, running

__all__ = [
    "Grid",
    "Int",
    "RunningRange",
    "calibrate",
    "dequantize",
    "fake_quantize",
    "grid",
    "initial_ranges",
    "quantize",
    "quantized",
    "running",
    "value_range",
]
