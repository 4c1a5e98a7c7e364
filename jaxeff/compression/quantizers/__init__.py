"""Quantizers by the values they take: evenly spaced ones, powers of two, codebooks, floats."""

from jaxeff.compression.quantizers._binary import Binary, BinaryBases, Ternary, TrainedTernary
from jaxeff.compression.quantizers._codebook import Codebook, Discrete, LearnedBasis
from jaxeff.compression.quantizers._data_free import (
    DoReFa,
    HalfQuadratic,
    HalfWave,
    half_wave_levels,
)
from jaxeff.compression.quantizers._learned_bits import (
    BayesianBits,
    PosteriorBits,
    deterministic_gates,
    gate_location,
    hard_concrete,
    open_probability,
    posterior_bits,
)
from jaxeff.compression.quantizers._learned_step import LSQ, PACT, LearnedWidth, Relaxed
from jaxeff.compression.quantizers._levels import Floating, Levels, mxfp, mxint, nf4, nvfp4
from jaxeff.compression.quantizers._powers import (
    Incremental,
    LearnedPowers,
    PowersOfTwo,
    incremental_quantization,
    largest_mask,
    share_schedule,
)
from jaxeff.compression.quantizers._uniform import Grouped, Int, Stochastic, Uniform, multiples_of
from jaxeff.compression.quantizers._wrappers import Rotated, Scaled, Switched, turned

__all__ = [
    "LSQ",
    "PACT",
    "BayesianBits",
    "Binary",
    "BinaryBases",
    "Codebook",
    "Discrete",
    "DoReFa",
    "Floating",
    "Grouped",
    "HalfQuadratic",
    "HalfWave",
    "Incremental",
    "Int",
    "LearnedBasis",
    "LearnedPowers",
    "LearnedWidth",
    "Levels",
    "PosteriorBits",
    "PowersOfTwo",
    "Relaxed",
    "Rotated",
    "Scaled",
    "Stochastic",
    "Switched",
    "Ternary",
    "TrainedTernary",
    "Uniform",
    "deterministic_gates",
    "gate_location",
    "half_wave_levels",
    "hard_concrete",
    "incremental_quantization",
    "largest_mask",
    "multiples_of",
    "mxfp",
    "mxint",
    "nf4",
    "nvfp4",
    "open_probability",
    "posterior_bits",
    "share_schedule",
    "turned",
]
