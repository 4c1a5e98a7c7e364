"""Hardening: training that prepares a network for analog noise.

    noise_at = lambda sigma: cross_entropy(noisy(f, {"*": Additive(sigma)}), keyed=True)
    ramp = optax.linear_schedule(0.0, 1.0, 1000)

    fit(key, noise_at(0.5), ...)                                  # noisy training
    fit(key, incremental(noise_at, ramp)(0.5), ...)               # growing noise
    fit(key, variance_aware(noise_per_image)(Variable(0.5, 0.2)), ...)          # VANT
    fit(key, distilled(noisy(f, spec), teacher, keyed=True), ...)  # a clean teacher
    fit(key, loss, ..., optimizer=sharpness_aware(adam, rho=0.5))  # SAM
    fit(key, loss, ..., optimizer=optax.chain(adam, clamped(-1, 1)))  # bounded weights
    quantized(f, relu_quantization(4, last="fc3", scale=0.5))      # quantization-aware training

Everything is a loss, an optimizer or a spec, so that all of it combines.
"""

from jaxeff.hardening.clamping import clamped
from jaxeff.hardening.distillation import distilled
from jaxeff.hardening.levels import incremental, scaled
from jaxeff.hardening.quantization import relu_quantization
from jaxeff.hardening.sharpness import sharpness_aware
from jaxeff.hardening.variance_aware import (
    ALPHA,
    THETA_PER_SIGMA,
    Variable,
    vant,
    variance_aware,
)

__all__ = [
    "ALPHA",
    "THETA_PER_SIGMA",
    "Variable",
    "clamped",
    "distilled",
    "incremental",
    "relu_quantization",
    "scaled",
    "sharpness_aware",
    "vant",
    "variance_aware",
]
