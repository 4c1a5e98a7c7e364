"""Compression without training: weights and ranges from a batch, on the program of any model.

Transforms keep the signature `f(params, *args)`; what they return goes to `quantized` as it is.
"""

from jaxeff.compression.post_training._biases import correct_biases, fold_batch_norm
from jaxeff.compression.post_training._calibrate import (
    RunningRange,
    calibrate,
    initial_ranges,
    running,
)
from jaxeff.compression.post_training._channels import equalize
from jaxeff.compression.post_training._clipping import clip_range
from jaxeff.compression.post_training._layerwise import RoundingProblem, arguments, on_grids
from jaxeff.compression.post_training._multiplication import Matrix, Multiplication, multiplications
from jaxeff.compression.post_training._rotation import rotate
from jaxeff.compression.post_training._rounding import adaround, gptq
from jaxeff.compression.post_training._scaling import awq, smooth_quant

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
