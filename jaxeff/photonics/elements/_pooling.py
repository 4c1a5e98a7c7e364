"""Probabilistic average pooling with chaotic light: a Gaussian training model and a simulation.

Both take activations through a quantized ReLU and the pooling itself. The training model then adds
Gaussian noise of a learnable deviation. The simulation spreads the pooled intensity over slots,
rounds each slot's amplitude stochastically to what the modulator can show, draws photon counts from
the exact Bose-Einstein distribution, lets the detector saturate, adds electronic noise per slot,
and sums. Mean and variance of both agree exactly while `levels` and `saturation` are None.

`light.pattern` says where pulses are made. "after": of the pooled intensity. "before", as the
source draws it: of each activation, with the noise level of the window that it is in, rounded to
the amplitude levels, then pooled slot by slot. The crossbar is linear, so an even split is the same
in both; full slots of different activations end at different places, and their mean is a smoother
train than the mean's own: the largest noise is smaller.

```python
import jax
import jax.numpy as jnp
from flax import nnx

from jaxeff.photonics import (
    ChaoticLight, gaussian_noise, noise_sigma, physical_sample, probabilistic_pooling, quant_relu
)

light = ChaoticLight(noise=0.5, bits=4)
assert quant_relu(jnp.array([-1.0, 0.5, 9.0]), 2, 3.0).tolist() == [0.0, 0.0, 3.0]

x = jax.random.normal(jax.random.key(0), (2, 8, 8, 3))       # before the nonlinearity
pooled = probabilistic_pooling(jax.random.key(1), x, light, lambda x: nnx.avg_pool(x, (2, 2)))
assert pooled.shape == (2, 7, 7, 3)

intensity = jnp.full(10_000, 2.0)                            # what is pooled already
trained = gaussian_noise(jax.random.key(2), intensity, light)
simulated = physical_sample(jax.random.key(3), intensity, light)
for reading in (trained, simulated):                         # both models have one deviation
    assert abs(reading.std() / noise_sigma(jnp.array(2.0), light) - 1) < 0.05
```

Sharp edges:
    "before" takes `slots` times the memory of the activations in the Gaussian model too.
    Stochastic rounding adds variance the training model doesn't know: up to
    (1 + 1/M) (cap / (levels - 1))² / 4 per slot.
    The simulation's gradient is that of its input intensity (straight-through); its noise level
    gets none. Train with the Gaussian model.
    Light is positive, but the Gaussian model's output can be negative: the next quantized ReLU cuts
    it off.

References:
    Brückerhoff-Plückelmann et al., Nature Communications 15, 10445 (2024).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.compression import fake_quantize
from jaxeff.core import (
    check_broadcasts,
    function_of_form,
    instance_of,
    positive,
    real_array,
    static_integer,
    validate,
    with_leading_axes,
)
from jaxeff.photonics.light import (
    Carrier,
    excess,
    noise_sigma,
    pattern_sigma,
    read_pulses,
    rounded_pulses,
    slot_correlation,
    slot_pattern,
)
from jaxeff.program import Layer
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import mark

_SUMS = {prim.p.reduce_window_sum_p, prim.p.reduce_sum_p}
_SCALES = {prim.p.div_p, prim.p.mul_p}


@validate(x=real_array(nan=True, empty=True), bits=static_integer(), top=positive)
def quant_relu(
    x: Float[Array, "*shape"], bits: int | None, top: Float[Array, ""] | float
) -> Float[Array, "*shape"]:
    """Applies a ReLU cut off at `top` and rounded to 2^bits evenly spaced values up to it.

    Args:
        x: Activations before the nonlinearity.
        bits: 1 to 8, or None for no rounding.
        top: Largest value.

    Returns:
        Values in [0, top]; the gradient is one inside the range and zero outside.
    """
    # Light is positive and its amplitude bounded: what lies outside can't be carried.
    # Not a minimum, whose gradient is a half at a tie: the brightest entry is often the top itself.
    top_of_x = jnp.asarray(top, x.dtype)
    clipped = jnp.where(x > top_of_x, top_of_x, jax.nn.relu(x))
    if bits is None:
        return clipped
    with jax.named_scope(mark("quantize", "levels")):
        return fake_quantize(clipped, bits, 0.0, top)


@validate(light=instance_of(Carrier), intensity=real_array(nan=True, empty=True))
def gaussian_noise(
    key: PRNGKeyArray, intensity: Float[Array, "*shape"], light: Carrier
) -> Float[Array, "*shape"]:
    """Returns the training model: a pooled intensity plus Gaussian noise of the deviation L picks.

    Args:
        key: A PRNG key.
        intensity: Pooled activations, between zero and `light.full_scale`.
        light: The setting.

    Returns:
        A noisy intensity, differentiable with respect to the intensity and every number of `light`.
    """
    if light.couples and intensity.ndim:
        return _shared_noise(key, intensity, slot_pattern(intensity, light), light)
    noise = jax.random.normal(key, intensity.shape, intensity.dtype)
    return (intensity + noise_sigma(intensity, light) * noise).astype(intensity.dtype)


def _shared_noise(key: PRNGKeyArray, intensity: Array, pulses: Array, light: Carrier) -> Array:
    """Adds Gaussian noise with the covariances of wavelength channels, which are the last axis."""
    own_key, common_key = jax.random.split(key)
    # The common part of the light's variance is drawn once per slot for all channels; only
    # the rest is a channel's own. Var = own + channel * excess, as without channels.
    own = pattern_sigma(pulses, light) ** 2 - light.channel * excess(pulses, pulses, light)
    noise = jax.random.normal(own_key, intensity.shape, intensity.dtype)
    noise *= jnp.sqrt(jnp.maximum(own, jnp.finfo(intensity.dtype).tiny))
    common = jax.random.normal(common_key, (*pulses.shape[:-1], 1), intensity.dtype)
    if light.remembers:
        # Correlated slots: one Cholesky factor of [slots, slots], small, serves all
        # activations.
        root = jnp.linalg.cholesky(slot_correlation(light, intensity.dtype))
        common = jnp.tensordot(root, common, 1)
    share = jnp.sqrt(jnp.asarray(light.channel / light.modes, intensity.dtype))
    return (intensity + noise + share * jnp.sum(pulses * common, 0)).astype(intensity.dtype)


@validate(light=instance_of(Carrier), intensity=real_array(nan=True, empty=True))
def physical_sample(
    key: PRNGKeyArray, intensity: Float[Array, "*shape"], light: Carrier
) -> Float[Array, "*shape"]:
    """Returns the simulation: a pooled intensity as read out from chaotic light, slot by slot.

    Args:
        key: A PRNG key.
        intensity: Pooled activations, between zero and `light.full_scale`.
        light: The setting.

    Returns:
        One reading per activation, in the units of the intensity.
    """
    round_key, count_key, read_key = jax.random.split(key, 3)
    pulses = rounded_pulses(round_key, slot_pattern(intensity, light), light)
    return _straight_through(read_pulses(count_key, read_key, pulses, light, True), intensity)


def _straight_through(sample: Array, intensity: Array) -> Array:
    sample = sample.astype(intensity.dtype)
    # Photon counts have no derivative; their mean is the intensity, whose derivative is
    # taken instead.
    return jax.lax.stop_gradient(sample) + (intensity - jax.lax.stop_gradient(intensity))


@validate(x=real_array(), light=instance_of(Carrier), pool=function_of_form("pool(x)"))
def probabilistic_pooling(
    key: PRNGKeyArray,
    x: Float[Array, "..."],
    light: Carrier,
    pool: Callable[[Float[Array, "..."]], Float[Array, "..."]],
) -> Float[Array, "..."]:
    """Carries an average pooling by chaotic light.

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
    # Quantized before the pooling, as in Klein's thesis, figures 10.4 and 10.5.
    activations = quant_relu(x, light.bits, light.full_scale)
    intensity = pool(activations)
    check_broadcasts("ChaoticLight.noise", light.noise, intensity.shape)
    # `moments` takes what is marked so at the mean: the read-out shifts it and keeps its variance.
    with jax.named_scope(mark("quantize", "light")):
        if light.pattern == "before":
            return _pool_pulses(key, activations, intensity, light, pool)
        model = physical_sample if light.model == "physical" else gaussian_noise
        return model(key, intensity, light)


def _pool_pulses(
    key: PRNGKeyArray,
    activations: Array,
    intensity: Array,
    light: Carrier,
    pool: Callable[[Array], Array],
) -> Array:
    """Pools the pulse trains of single activations slot by slot."""
    each = replace(light, noise=_noise_before(activations, intensity, light, pool))
    # One train per activation: `slots` times the memory of the activations.
    pulses = slot_pattern(activations, each)
    if light.model == "gaussian":
        if light.couples and intensity.ndim:
            return _shared_noise(key, intensity, jax.vmap(pool)(pulses), light)
        noise = jax.random.normal(key, intensity.shape, intensity.dtype)
        # The crossbar is linear, so pulses of one slot add before the detector: noise is that of
        # the pooled train, not a mean of noises.
        sigma = pattern_sigma(jax.vmap(pool)(pulses), light)
        return (intensity + sigma * noise).astype(intensity.dtype)
    round_key, count_key, read_key = jax.random.split(key, 3)
    pooled = jax.vmap(pool)(rounded_pulses(round_key, pulses, light))
    return _straight_through(read_pulses(count_key, read_key, pooled, light, False), intensity)


def _noise_before(
    activations: Array, intensity: Array, light: Carrier, pool: Callable[[Array], Array]
) -> Any:
    """Returns the noise level of each activation: the mean over the windows that hold it."""
    if jnp.ndim(light.noise) == 0:
        return light.noise
    # The pooling is linear, so its transpose spreads each window's level to its
    # activations; where windows overlap, the sum of weights normalizes the mean.
    noise = jnp.broadcast_to(with_leading_axes(light.noise, intensity.shape), intensity.shape)
    _, spread = jax.vjp(pool, activations)
    (levels,), (weights,) = spread(noise.astype(intensity.dtype)), spread(jnp.ones_like(intensity))
    return levels / jnp.where(weights > 0, weights, 1)


def refuses_pooling(layer: Layer) -> str:
    """Returns why light can't carry a layer as a pooling; empty if it can."""
    found = {node.primitive for node in layer.nodes}
    averages = bool(found & _SUMS) and bool(found & _SCALES)
    results = [v for v in layer.outputs if not v.spread]
    single = len(_signals(layer)) == len(results) == 1
    if layer.kind in {"pooling", "reduction"} and averages and single:
        return ""
    return "Chaotic light can carry average pooling only, as 'avg_pool*'"


def carry_pooling(
    key: PRNGKeyArray, layer: Layer, values: Sequence[Any], light: Carrier
) -> Sequence[Any]:
    """Returns a pooling layer's outputs as read out of chaotic light."""
    i, result, pool = pooling_of(layer, values)
    outputs = list(layer.fn(*values))
    outputs[result] = probabilistic_pooling(key, values[i], light, pool)
    return outputs


def read_pooling(layer: Layer, values: Sequence[Any], light: Carrier) -> tuple[Array, Array]:
    """Computes the mean and variance of a pooling layer's reading."""
    i, _, pool = pooling_of(layer, values)
    activations = quant_relu(values[i], light.bits, light.full_scale)
    intensity = pool(activations)
    check_broadcasts("ChaoticLight.noise", light.noise, intensity.shape)
    if light.pattern == "after":
        return intensity, noise_sigma(intensity, light) ** 2
    each = replace(light, noise=_noise_before(activations, intensity, light, pool))
    return intensity, pattern_sigma(jax.vmap(pool)(slot_pattern(activations, each)), light) ** 2


def pooling_of(layer: Layer, values: Sequence[Any]) -> tuple[int, int, Callable[[Any], Any]]:
    """Returns the index of the pooled input, that of its output, and the pooling as a function."""
    (i,) = _signals(layer)
    (result,) = (i for i, v in enumerate(layer.outputs) if not v.spread)

    def pool(x: Any) -> Any:
        return layer.fn(*values[:i], x, *values[i + 1 :])[result]

    return i, result, pool


def _signals(layer: Layer) -> list[int]:
    return [i for i in layer.data if not layer.inputs[i].spread]
