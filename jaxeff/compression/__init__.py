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

__all__ = [
    "Grid",
    "Int",
    "calibrate",
    "dequantize",
    "fake_quantize",
    "grid",
    "quantize",
    "quantized",
    "value_range",
]
