"""What detectors behind a crossbar read: a product of cells and of light, drawn or expected.

A *product* is a function of cells, between -1 and 1, and of intensities at or above zero; linear in
both. Negative cells are on rails of their own, and negative inputs are sent as light of their own,
measured separately: electronics take the differences.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from jaxeff.core import Count, Setting, static
from jaxeff.photonics.elements._chaotic_light import ChaoticLight
from jaxeff.photonics.elements._pooling import gaussian_noise, quant_relu
from jaxeff.photonics.light import (
    TINY,
    noise_sigma,
    poisson_counts,
    rounded_pulses,
    slot_pattern,
    with_intensity_noise,
)

Product = Callable[[Array, Array], Array]
RAILS = ("two", "one")
INPUTS = ("positive", "signed")
MANY = 1e30
"""Photons per unit of intensity that make shot noise vanish."""


@dataclass(frozen=True)
class Transmissive(Setting):
    """The fields of elements that multiply light by transmissions."""

    light: ChaoticLight = field(default_factory=lambda: ChaoticLight(noise=0.0))
    levels: Annotated[int, Count(2)] = static(16)
    cell_levels: Annotated[int, Count(2)] = static(32)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        name = type(self).__name__
        if not isinstance(self.light, ChaoticLight):
            raise TypeError(f"{name}.light must be a ChaoticLight, not {self.light!r}.")
        if self.levels > self.cell_levels:
            raise ValueError(
                f"{name}.levels asks for {self.levels} transmissions, but a cell has "
                f"{self.cell_levels} (cell_levels)."
            )


def rounded(relative: Array, levels: int) -> Array:
    """Returns transmissions at levels evenly apart, with the gradient of those that were asked."""
    steps = levels - 1
    # Straight-through: the value of the rounded transmission, the gradient of the weight.
    return relative + jax.lax.stop_gradient(jnp.round(relative * steps) / steps - relative)


def as_light(x: Array, light: ChaoticLight, inputs: str) -> list[tuple[float, Array]]:
    """Splits inputs into intensities, each with the sign that its reading is added with."""
    # Both pass the quantized ReLU: what one part cuts off is what the other one carries.
    signs = (1.0, -1.0) if inputs == "signed" else (1.0,)
    return [(sign, quant_relu(sign * x, light.bits, light.full_scale)) for sign in signs]


def sampled(
    key: PRNGKeyArray, product: Product, cells: Array, x: Array, light: ChaoticLight, rails: str
) -> Array:
    """Draws a reading of intensities behind cells, in units of light."""
    # The carriers are drawn once, in front of the crossbar: outputs that read an input share
    # its fluctuation, which separate draws per product would lose.
    light_key, read_key = jax.random.split(key)
    bright = _fluctuating(light_key, x, light)
    signed = product(cells, bright)
    total = product(jnp.abs(cells), bright)  # of both rails
    if light.model != "physical":
        sigma = jnp.sqrt(jnp.maximum(_detectors(total, light, rails), TINY))
        return signed + sigma * jax.random.normal(read_key, signed.shape, signed.dtype)
    # A signed weight is the difference of two rails: |w| x is the sum of both, w x the
    # difference.
    keys = jax.random.split(read_key)
    reading = _detected(keys[0], (total + signed) / 2, light)
    if rails == "two":
        reading -= _detected(keys[1], (total - signed) / 2, light)
    # The reading has the gradient of the noiseless product (straight-through): counts
    # have none.
    noiseless = product(cells, x)
    return jax.lax.stop_gradient(reading.astype(noiseless.dtype) - noiseless) + noiseless


def expected(
    product: Product,
    cells: Array,
    parts: list[tuple[float, Array]],
    light: ChaoticLight,
    rails: str,
) -> tuple[Array, Array]:
    """Computes the mean and variance of readings by `sampled`, added with their signs."""
    means, variances = [], []
    for sign, x in parts:
        spread = noise_sigma(x, _without_detectors(light)) ** 2
        # Independent carriers: Var[sum w_i x_i] = sum w_i^2 Var[x_i], by the same product.
        carriers = product(cells**2, spread)
        means.append(sign * product(cells, x))
        variances.append(carriers + _detectors(product(jnp.abs(cells), x), light, rails))
    return functools.reduce(jnp.add, means), functools.reduce(jnp.add, variances)


def _detectors(total: Array, light: ChaoticLight, rails: str) -> Array:
    """Returns the variance of shot noise and electronics, given the light on all rails."""
    # Two detectors for two rails, each with noise of its own that the difference adds up.
    electronic = (2 if rails == "two" else 1) * light.slots * light.electronic**2
    return jnp.maximum(total, 0) / light.photons + electronic


def _fluctuating(key: PRNGKeyArray, x: Array, light: ChaoticLight) -> Array:
    """Draws carriers, without the detectors' noise."""
    if light.model != "physical":
        return jnp.maximum(gaussian_noise(key, x, _without_detectors(light)), 0)
    round_key, light_key = jax.random.split(key)
    pulses = rounded_pulses(round_key, slot_pattern(x, light), light)
    return jnp.sum(with_intensity_noise(light_key, pulses, light), axis=0).astype(x.dtype)


def _without_detectors(light: ChaoticLight) -> ChaoticLight:
    return replace(light, photons=MANY, electronic=0.0)


def _detected(key: PRNGKeyArray, intensity: Array, light: ChaoticLight) -> Array:
    """Draws one rail's reading of all slots."""
    count_key, read_key = jax.random.split(key)
    # The intensity already fluctuates; given it, photons are Poisson (the mixture is
    # Bose-Einstein).
    counts = poisson_counts(count_key, jnp.maximum(intensity, 0) * light.photons)
    reading = counts.astype(intensity.dtype) / light.photons
    if light.saturation is not None:
        reading = jnp.minimum(reading, light.saturation * light.slots)
    electronic = light.electronic * light.slots**0.5
    return reading + electronic * jax.random.normal(read_key, intensity.shape, intensity.dtype)
