"""Quantizers with evenly spaced values, which differ in how step and width are found."""

from jaxeff.compression.quantizers.uniform._bayesian_bits import BayesianBits
from jaxeff.compression.quantizers.uniform._dorefa import DoReFa
from jaxeff.compression.quantizers.uniform._grouped import Grouped, multiples_of
from jaxeff.compression.quantizers.uniform._half_quadratic import HalfQuadratic
from jaxeff.compression.quantizers.uniform._half_wave import HalfWave, half_wave_levels
from jaxeff.compression.quantizers.uniform._hard_concrete import (
    deterministic_gates,
    gate_location,
    hard_concrete,
    open_probability,
)
from jaxeff.compression.quantizers.uniform._int import Int
from jaxeff.compression.quantizers.uniform._learned_width import LearnedWidth
from jaxeff.compression.quantizers.uniform._lsq import LSQ
from jaxeff.compression.quantizers.uniform._pact import PACT
from jaxeff.compression.quantizers.uniform._posterior_bits import PosteriorBits, posterior_bits
from jaxeff.compression.quantizers.uniform._relaxed import Relaxed
from jaxeff.compression.quantizers.uniform._stochastic import Stochastic
from jaxeff.compression.quantizers.uniform._uniform import Uniform

__all__ = [
    "LSQ",
    "PACT",
    "BayesianBits",
    "DoReFa",
    "Grouped",
    "HalfQuadratic",
    "HalfWave",
    "Int",
    "LearnedWidth",
    "PosteriorBits",
    "Relaxed",
    "Stochastic",
    "Uniform",
    "deterministic_gates",
    "gate_location",
    "half_wave_levels",
    "hard_concrete",
    "multiples_of",
    "open_probability",
    "posterior_bits",
]
