"""Probabilistic average pooling with chaotic light: a Gaussian training model and a simulation.

Both take activations through a quantized ReLU and the pooling itself. The training model then adds
Gaussian noise of a learnable deviation. The simulation spreads the pooled intensity over slots,
rounds each slot's amplitude stochastically to what the modulator can show, draws photon counts from
the exact Bose-Einstein distribution, lets the detector saturate, adds electronic noise per slot,
and sums. Mean and variance of both agree exactly while `levels` and `saturation` are None.

Sharp edges:
    The simulation forms the pulse pattern after pooling. The source draws it before; the crossbar
    is linear, so this is the same whenever the inputs of a window share one pattern shape, which is
    what a noise level per pooled activation means. Amplitude levels then apply to the pooled slot.
    Stochastic rounding adds variance the training model doesn't know: up to
    (1 + 1/M) (cap / (levels - 1))² / 4 per slot.
    The simulation's gradient is that of its input intensity (straight-through); its noise level
    gets none. Train with the Gaussian model.
    Light is positive, but the Gaussian model's output can be negative: the next quantized ReLU cuts
    it off.

References:
    Brückerhoff-Plückelmann et al., Nature Communications 15, 10445 (2024).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.compression.quantization import fake_quantize
from jaxeff.photonics.chaotic_light import ChaoticLight, noise_sigma, slot_pattern
from jaxeff.photonics.photon_counts import photon_counts
from jaxeff.program.grouping import mark
from jaxeff.settings import check_broadcasts


def quant_relu(
    x: Float[Array, "*shape"], bits: int | None, top: Float[Array, ""] | float
) -> Float[Array, "*shape"]:
    """A ReLU cut off at `top` and rounded to 2^bits evenly spaced values from zero to `top`.

    Args:
        x: Activations before the nonlinearity.
        bits: 1 to 8, or None for no rounding.
        top: Largest value.

    Returns:
        Values in [0, top]; the gradient is one inside the range and zero outside.
    """
    clipped = jnp.minimum(jax.nn.relu(x), jnp.asarray(top, x.dtype))
    if bits is None:
        return clipped
    with jax.named_scope(mark("quantize", "levels")):
        return fake_quantize(clipped, bits, 0.0, top)


def gaussian_noise(
    key: PRNGKeyArray, intensity: Float[Array, "*shape"], light: ChaoticLight
) -> Float[Array, "*shape"]:
    """The training model: a pooled intensity plus Gaussian noise of the deviation L picks.

    Args:
        key: A PRNG key.
        intensity: Pooled activations, between zero and `light.full_scale`.
        light: The setting.

    Returns:
        A noisy intensity, differentiable with respect to the intensity and every number of `light`.
    """
    noise = jax.random.normal(key, intensity.shape, intensity.dtype)
    return (intensity + noise_sigma(intensity, light) * noise).astype(intensity.dtype)


def physical_sample(
    key: PRNGKeyArray, intensity: Float[Array, "*shape"], light: ChaoticLight
) -> Float[Array, "*shape"]:
    """The simulation: a pooled intensity as read out from chaotic light, slot by slot.

    Args:
        key: A PRNG key.
        intensity: Pooled activations, between zero and `light.full_scale`.
        light: The setting.

    Returns:
        One reading per activation, in the units of the intensity.
    """
    round_key, count_key, read_key = jax.random.split(key, 3)
    pulses = slot_pattern(intensity, light)
    if light.levels is not None:
        step = light.cap / (light.levels - 1)
        dither = jax.random.uniform(round_key, pulses.shape, pulses.dtype)
        pulses = jnp.clip(jnp.floor(pulses / step + dither), 0, light.levels - 1) * step
    counts = photon_counts(count_key, pulses * light.photons, light.modes, pulses.shape)
    reading = counts.astype(pulses.dtype) / light.photons
    if light.saturation is not None:
        reading = jnp.minimum(reading, light.saturation)
    reading += light.electronic * jax.random.normal(read_key, pulses.shape, pulses.dtype)
    sample = jnp.sum(reading, axis=0).astype(intensity.dtype)
    return jax.lax.stop_gradient(sample) + (intensity - jax.lax.stop_gradient(intensity))


def probabilistic_pooling(
    key: PRNGKeyArray,
    x: Float[Array, "..."],
    light: ChaoticLight,
    pool: Callable[[Float[Array, "..."]], Float[Array, "..."]],
) -> Float[Array, "..."]:
    """Average pooling carried by chaotic light.

    Args:
        key: A PRNG key.
        x: Activations before the nonlinearity, such as (batch, height, width, channels).
        light: The setting; `light.model` picks the Gaussian or the physical model.
        pool: The average pooling, a linear function with non-negative weights that sum to one.

    Returns:
        Noisy pooled activations, in the shape and dtype of `pool(x)`.

    Raises:
        ValueError: `light.noise` doesn't broadcast against the pooled activations.
    """
    intensity = pool(quant_relu(x, light.bits, light.full_scale))
    check_broadcasts("ChaoticLight.noise", light.noise, intensity.shape)
    model = physical_sample if light.model == "physical" else gaussian_noise
    # `moments` takes what is marked so at the mean: the read-out shifts it and keeps its variance.
    with jax.named_scope(mark("quantize", "light")):
        return model(key, intensity, light)
