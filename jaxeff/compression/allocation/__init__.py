"""Allocation of bits to layers: sensitivities to fewer bits, and the best choice in a budget."""

from jaxeff.compression.allocation._errors import (
    QuantizationErrors,
    noise_to_signal,
    quantization_errors,
    signal_to_noise_bits,
)
from jaxeff.compression.allocation._hessian import HessianTrace, hessian_sensitivity, hessian_trace
from jaxeff.compression.allocation._kl import kl_sensitivity
from jaxeff.compression.allocation._knapsack import allocate_bits
from jaxeff.compression.allocation._policy import FLOAT, bit_policy, each_policy
from jaxeff.compression.allocation._table import BitSensitivity

__all__ = [
    "FLOAT",
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
