"""Compression without training: weights and ranges from a batch, on the program of any model.

Transforms keep the signature `f(params, *args)`; what they return goes to `quantized` as it is.
"""

from jaxeff.compression.post_training._adaround import adaround
from jaxeff.compression.post_training._awq import awq
from jaxeff.compression.post_training._batch_norm import fold_batch_norm
from jaxeff.compression.post_training._bias_correction import correct_biases
from jaxeff.compression.post_training._equalization import equalize
from jaxeff.compression.post_training._gptq import gptq
from jaxeff.compression.post_training._layerwise import RoundingProblem, arguments, on_grids
from jaxeff.compression.post_training._multiplication import Matrix, Multiplication, multiplications
from jaxeff.compression.post_training._rotation import rotate
from jaxeff.compression.post_training._smooth_quant import smooth_quant
from jaxeff.compression.post_training.ranges import (
    RunningRange,
    calibrate,
    clip_range,
    initial_ranges,
    running,
)

__all__ = [
    "Matrix",
    "Multiplication",
    "RoundingProblem",
    "RunningRange",
    "adaround",
    "arguments",
    "awq",
    "calibrate",
    "clip_range",
    "correct_biases",
    "equalize",
    "fold_batch_norm",
    "gptq",
    "initial_ranges",
    "multiplications",
    "on_grids",
    "rotate",
    "running",
    "smooth_quant",
]
