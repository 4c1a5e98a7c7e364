"""Quantizers with values of their own: binary, ternary, powers of two, codebooks, floats."""

from jaxeff.compression.quantizers.codebooks._binary import Binary
from jaxeff.compression.quantizers.codebooks._binary_bases import BinaryBases
from jaxeff.compression.quantizers.codebooks._codebook import Codebook
from jaxeff.compression.quantizers.codebooks._discrete import Discrete
from jaxeff.compression.quantizers.codebooks._floating import Floating
from jaxeff.compression.quantizers.codebooks._incremental import (
    Incremental,
    incremental_quantization,
    largest_mask,
    share_schedule,
)
from jaxeff.compression.quantizers.codebooks._learned_basis import LearnedBasis
from jaxeff.compression.quantizers.codebooks._learned_powers import LearnedPowers
from jaxeff.compression.quantizers.codebooks._levels import Levels
from jaxeff.compression.quantizers.codebooks._powers_of_two import PowersOfTwo
from jaxeff.compression.quantizers.codebooks._ternary import Ternary, TrainedTernary

__all__ = [
    "Binary",
    "BinaryBases",
    "Codebook",
    "Discrete",
    "Floating",
    "Incremental",
    "LearnedBasis",
    "LearnedPowers",
    "Levels",
    "PowersOfTwo",
    "Ternary",
    "TrainedTernary",
    "incremental_quantization",
    "largest_mask",
    "share_schedule",
]
