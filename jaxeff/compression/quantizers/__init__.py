"""Quantizers by the values they take: evenly spaced ones, powers of two, codebooks, floats."""

from jaxeff.compression.quantizers._binary import Binary, Ternary, TrainedTernary
from jaxeff.compression.quantizers._codebook import Codebook
from jaxeff.compression.quantizers._learned_step import LSQ, PACT, DoReFa
from jaxeff.compression.quantizers._levels import (
    Floating,
    Levels,
    PowersOfTwo,
    mxfp,
    mxint,
    nearest_power,
    nearest_powers,
    nf4,
    nvfp4,
    top_exponent,
)
from jaxeff.compression.quantizers._uniform import Grouped, Int, Stochastic, Uniform, multiples_of
from jaxeff.compression.quantizers._wrappers import Rotated, Scaled, Switched, turned

__all__ = [
    "LSQ",
    "PACT",
    "Binary",
    "Codebook",
    "DoReFa",
    "Floating",
    "Grouped",
    "Int",
    "Levels",
    "PowersOfTwo",
    "Rotated",
    "Scaled",
    "Stochastic",
    "Switched",
    "Ternary",
    "TrainedTernary",
    "Uniform",
    "multiples_of",
    "mxfp",
    "mxint",
    "nearest_power",
    "nearest_powers",
    "nf4",
    "nvfp4",
    "top_exponent",
    "turned",
]
