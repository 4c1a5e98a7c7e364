"""Where bits go: what each layer loses by fewer of them, and what a budget buys."""

from jaxeff.compression.allocation.errors import (
    QuantizationErrors,
    noise_to_signal,
    quantization_errors,
    signal_to_noise_bits,
)
from jaxeff.compression.allocation.hessian import (
    HessianTrace,
    hessian_sensitivity,
    hessian_trace,
)
from jaxeff.compression.allocation.kl import kl_sensitivity
from jaxeff.compression.allocation.knapsack import allocate_bits
from jaxeff.compression.allocation.policy import bit_policy, each_policy
from jaxeff.compression.allocation.table import BitSensitivity

__all__ = [
    "BitSensitivity",
    "HessianTrace",
    "QuantizationErrors",
    "allocate_bits",
    "bit_policy",
    "each_policy",
    "hessian_sensitivity",
    "hessian_trace",
    "kl_sensitivity",
    "noise_to_signal",
    "quantization_errors",
    "signal_to_noise_bits",
]
