"""Compression: fewer bits, fewer channels."""

from jaxeff.compression.quantization import (
    Grid,
    dequantize,
    fake_quantize,
    grid,
    quantize,
    value_range,
)

__all__ = ["Grid", "dequantize", "fake_quantize", "grid", "quantize", "value_range"]
