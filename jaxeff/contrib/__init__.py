"""Beside the core: models and methods that are tested, and that nothing else builds on.

Quantizers of one paper each, decoders of text with their tokenizers, a classifier of files, and
latencies of accelerators by formula. CONTRIBUTING says what belongs here.
"""

from jaxeff.contrib._accelerators import DataflowPipeline, SystolicArray
from jaxeff.contrib._codebook import BinaryBases, Discrete, LearnedBasis
from jaxeff.contrib._data_free import HalfQuadratic, HalfWave, half_wave_levels
from jaxeff.contrib._decoder import Decoder, DecoderCache, DecoderConfig, smollm2_135m
from jaxeff.contrib._file_types import Magika, PretrainedMagika, file_tokens, load_magika
from jaxeff.contrib._learned_bits import BayesianBits, PosteriorBits, posterior_bits
from jaxeff.contrib._learned_step import LearnedWidth, Relaxed
from jaxeff.contrib._powers import (
    Incremental,
    LearnedPowers,
    incremental_quantization,
    share_schedule,
)
from jaxeff.contrib._pretrained import PretrainedDecoder, Tokenizer, load_decoder, load_tokenizer
from jaxeff.contrib._sampling import generate, sample

__all__ = [
    "BayesianBits",
    "BinaryBases",
    "DataflowPipeline",
    "Decoder",
    "DecoderCache",
    "DecoderConfig",
    "Discrete",
    "HalfQuadratic",
    "HalfWave",
    "Incremental",
    "LearnedBasis",
    "LearnedPowers",
    "LearnedWidth",
    "Magika",
    "PosteriorBits",
    "PretrainedDecoder",
    "PretrainedMagika",
    "Relaxed",
    "SystolicArray",
    "Tokenizer",
    "file_tokens",
    "generate",
    "half_wave_levels",
    "incremental_quantization",
    "load_decoder",
    "load_magika",
    "load_tokenizer",
    "posterior_bits",
    "sample",
    "share_schedule",
    "smollm2_135m",
]
