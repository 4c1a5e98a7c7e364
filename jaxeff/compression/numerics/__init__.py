"""Grids, rounding and codes, and the protocol that every quantizer follows."""

from jaxeff.compression.numerics._entropy_coding import mean_length
from jaxeff.compression.numerics._fitting import (
    code_range,
    infer_sign,
    keep_ordered,
    keep_positive,
    largest_magnitude,
    magnitude,
    safe_scale,
    start_scale,
)
from jaxeff.compression.numerics._grid import (
    MAX_BITS,
    Bits,
    Grid,
    dequantize,
    fake_quantize,
    grid,
    kept_axes,
    power_of_two,
    quantize,
    ranges,
    round_through,
    straight_through,
    value_range,
    wide_dtype,
)
from jaxeff.compression.numerics._layer_quantization import (
    HasParts,
    LayerQuantization,
    Method,
    parts,
)
from jaxeff.compression.numerics._learned_bits import LearnedBits
from jaxeff.compression.numerics._nearest_level import (
    at_least_float32,
    least_squares,
    lookup_levels,
    nearest,
    sums,
)
from jaxeff.compression.numerics._quantizer import BaseQuantizer, Quantizer, Tensor

__all__ = [
    "MAX_BITS",
    "BaseQuantizer",
    "Bits",
    "Grid",
    "HasParts",
    "LayerQuantization",
    "LearnedBits",
    "Method",
    "Quantizer",
    "Tensor",
    "at_least_float32",
    "code_range",
    "dequantize",
    "fake_quantize",
    "grid",
    "infer_sign",
    "keep_ordered",
    "keep_positive",
    "kept_axes",
    "largest_magnitude",
    "least_squares",
    "lookup_levels",
    "magnitude",
    "mean_length",
    "nearest",
    "parts",
    "power_of_two",
    "quantize",
    "ranges",
    "round_through",
    "safe_scale",
    "start_scale",
    "straight_through",
    "sums",
    "value_range",
    "wide_dtype",
]
