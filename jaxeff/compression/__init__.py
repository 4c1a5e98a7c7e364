"""Compression: fewer bits, fewer channels."""

from jaxeff.compression.allocation import (
    BitSensitivity,
    HessianTrace,
    QuantizationErrors,
    allocate_bits,
    bit_policy,
    each_policy,
    hessian_sensitivity,
    hessian_trace,
    kl_sensitivity,
    noise_to_signal,
    quantization_errors,
    signal_to_noise_bits,
)
from jaxeff.compression.apart import Apart
from jaxeff.compression.bases import BinaryBases
from jaxeff.compression.bayesian_bits import BayesianBits
from jaxeff.compression.binary import Binary
from jaxeff.compression.calibration import calibrate
from jaxeff.compression.codebook import Codebook
from jaxeff.compression.discrete import Discrete, random_weights
from jaxeff.compression.dorefa import DoReFa
from jaxeff.compression.floating import Floating
from jaxeff.compression.half_wave import HalfWave, half_wave_levels
from jaxeff.compression.incremental import Incremental, incrementally, shares
from jaxeff.compression.integer import Int
from jaxeff.compression.integers import (
    Converted,
    Integer,
    IntegerError,
    IntegerFallbackWarning,
    integer,
    integer_aware,
)
from jaxeff.compression.learned_basis import LearnedBasis
from jaxeff.compression.learned_powers import LearnedPowers
from jaxeff.compression.learned_width import LearnedWidth
from jaxeff.compression.lsq import LSQ
from jaxeff.compression.pact import PACT
from jaxeff.compression.penalties import memory, penalty
from jaxeff.compression.post_training import (
    adaround,
    awq,
    clip_range,
    correct_biases,
    equalize,
    fold_batch_norm,
    gptq,
)
from jaxeff.compression.posterior_bits import PosteriorBits, posterior_bits
from jaxeff.compression.powers_of_two import PowersOfTwo
from jaxeff.compression.protocol import Quantization, Quantizer, Tensor
from jaxeff.compression.quantization import (
    Grid,
    dequantize,
    fake_quantize,
    grid,
    quantize,
    round_through,
    straight_through,
    value_range,
)
from jaxeff.compression.quantized import quantized
from jaxeff.compression.relaxed import Relaxed
from jaxeff.compression.running import RunningRange, initial_ranges, running
from jaxeff.compression.scaled import Scaled
from jaxeff.compression.settled import settled
from jaxeff.compression.start import init, learned
from jaxeff.compression.stochastic import Stochastic
from jaxeff.compression.switched import Switched
from jaxeff.compression.ternary import Ternary, TrainedTernary
from jaxeff.compression.uniform import Uniform
from jaxeff.compression.updated import updated

__all__ = [
    "LSQ",
    "PACT",
    "Apart",
    "BayesianBits",
    "Binary",
    "BinaryBases",
    "BitSensitivity",
    "Codebook",
    "Converted",
    "Discrete",
    "DoReFa",
    "Floating",
    "Grid",
    "HalfWave",
    "HessianTrace",
    "Incremental",
    "Int",
    "Integer",
    "IntegerError",
    "IntegerFallbackWarning",
    "LearnedBasis",
    "LearnedPowers",
    "LearnedWidth",
    "PosteriorBits",
    "PowersOfTwo",
    "Quantization",
    "QuantizationErrors",
    "Quantizer",
    "Relaxed",
    "RunningRange",
    "Scaled",
    "Stochastic",
    "Switched",
    "Tensor",
    "Ternary",
    "TrainedTernary",
    "Uniform",
    "adaround",
    "allocate_bits",
    "awq",
    "bit_policy",
    "calibrate",
    "clip_range",
    "correct_biases",
    "dequantize",
    "each_policy",
    "equalize",
    "fake_quantize",
    "fold_batch_norm",
    "gptq",
    "grid",
    "half_wave_levels",
    "hessian_sensitivity",
    "hessian_trace",
    "incrementally",
    "init",
    "initial_ranges",
    "integer",
    "integer_aware",
    "kl_sensitivity",
    "learned",
    "memory",
    "noise_to_signal",
    "penalty",
    "posterior_bits",
    "quantization_errors",
    "quantize",
    "quantized",
    "random_weights",
    "round_through",
    "running",
    "settled",
    "shares",
    "signal_to_noise_bits",
    "straight_through",
    "updated",
    "value_range",
]
