"""Compression without training: weights and ranges from a batch, on the program of any model.

Transforms keep the signature `f(params, *args)`; what they return goes to `quantized` as it is.
"""

from jaxeff.compression.post_training.adaround import adaround
from jaxeff.compression.post_training.awq import awq
from jaxeff.compression.post_training.batch_norm import fold_batch_norm
from jaxeff.compression.post_training.bias_correction import correct_biases
from jaxeff.compression.post_training.equalization import equalize
from jaxeff.compression.post_training.gptq import gptq
from jaxeff.compression.post_training.ranges import clip_range

__all__ = [
    "adaround",
    "awq",
    "clip_range",
    "correct_biases",
    "equalize",
    "fold_batch_norm",
    "gptq",
]
