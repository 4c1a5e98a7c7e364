"""Probabilistic average pooling with chaotic light: the setting, a training model, a simulation.

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
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.compression import fake_quantize
from jaxeff.photonics import _light
from jaxeff.photonics._detector import read_pulses, rounded_pulses
from jaxeff.program import Layer
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import mark

_SUMS = {prim.p.reduce_window_sum_p, prim.p.reduce_sum_p}


@core.validate(
    x=core.real_array(nan=True, empty=True), bits=core.static_integer(), top=core.positive
)
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


@core.validate(
    light=core.instance_of(_light.Carrier), intensity=core.real_array(nan=True, empty=True)
)
def gaussian_noise(
    key: PRNGKeyArray, intensity: Float[Array, "*shape"], light: _light.Carrier
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
        return _shared_noise(key, intensity, _light.slot_pattern(intensity, light), light)
    noise = jax.random.normal(key, intensity.shape, intensity.dtype)
    return (intensity + _light.noise_sigma(intensity, light) * noise).astype(intensity.dtype)


def _shared_noise(
    key: PRNGKeyArray, intensity: Array, pulses: Array, light: _light.Carrier
) -> Array:
    """Adds Gaussian noise with the covariances of wavelength channels, which are the last axis."""
    own_key, common_key = jax.random.split(key)
    # The common part of the light's variance is drawn once per slot for all channels; only
    # the rest is a channel's own. Var = own + channel * excess, as without channels.
    channel_variance = _light.pattern_sigma(pulses, light) ** 2 - light.channel * _light.excess(
        pulses, pulses, light
    )
    noise = jax.random.normal(own_key, intensity.shape, intensity.dtype)
    noise *= jnp.sqrt(jnp.maximum(channel_variance, jnp.finfo(intensity.dtype).tiny))
    common = jax.random.normal(common_key, (*pulses.shape[:-1], 1), intensity.dtype)
    if light.remembers:
        # Correlated slots: one Cholesky factor of [slots, slots], small, serves all activations.
        root = jnp.linalg.cholesky(_light.slot_correlation(light, intensity.dtype))
        common = jnp.tensordot(root, common, 1)
    share = jnp.sqrt(jnp.asarray(light.channel / light.modes, intensity.dtype))
    return (intensity + noise + share * jnp.sum(pulses * common, 0)).astype(intensity.dtype)


@core.validate(
    light=core.instance_of(_light.Carrier), intensity=core.real_array(nan=True, empty=True)
)
def physical_sample(
    key: PRNGKeyArray, intensity: Float[Array, "*shape"], light: _light.Carrier
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
    pulses = rounded_pulses(round_key, _light.slot_pattern(intensity, light), light)
    return _straight_through(read_pulses(count_key, read_key, pulses, light, True), intensity)


def _straight_through(sample: Array, intensity: Array) -> Array:
    sample = sample.astype(intensity.dtype)
    # Photon counts have no derivative; their mean is the intensity, whose derivative is
    # taken instead.
    return jax.lax.stop_gradient(sample) + (intensity - jax.lax.stop_gradient(intensity))


@core.validate(
    x=core.real_array(),
    light=core.instance_of(_light.Carrier),
    pool=core.function_of_form("pool(x)"),
)
def probabilistic_pooling(
    key: PRNGKeyArray,
    x: Float[Array, "..."],
    light: _light.Carrier,
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
    core.check_broadcasts("ChaoticLight.noise", light.noise, intensity.shape)
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
    light: _light.Carrier,
    pool: Callable[[Array], Array],
) -> Array:
    """Pools the pulse trains of single activations slot by slot."""
    each = replace(light, noise=_noise_before(activations, intensity, light, pool))
    # One train per activation: `slots` times the memory of the activations.
    pulses = _light.slot_pattern(activations, each)
    if light.model == "gaussian":
        if light.couples and intensity.ndim:
            return _shared_noise(key, intensity, jax.vmap(pool)(pulses), light)
        noise = jax.random.normal(key, intensity.shape, intensity.dtype)
        # The crossbar is linear, so pulses of one slot add before the detector: noise is that of
        # the pooled train, not a mean of noises.
        sigma = _light.pattern_sigma(jax.vmap(pool)(pulses), light)
        return (intensity + sigma * noise).astype(intensity.dtype)
    round_key, count_key, read_key = jax.random.split(key, 3)
    pooled = jax.vmap(pool)(rounded_pulses(round_key, pulses, light))
    return _straight_through(read_pulses(count_key, read_key, pooled, light, False), intensity)


def _noise_before(
    activations: Array, intensity: Array, light: _light.Carrier, pool: Callable[[Array], Array]
) -> Any:
    """Returns the noise level of each activation: the mean over the windows that hold it."""
    if jnp.ndim(light.noise) == 0:
        return light.noise
    # The pooling is linear, so its transpose spreads each window's level to its
    # activations; where windows overlap, the sum of weights normalizes the mean.
    noise = jnp.broadcast_to(core.with_leading_axes(light.noise, intensity.shape), intensity.shape)
    _, spread = jax.vjp(pool, activations)
    (levels,), (weights,) = spread(noise.astype(intensity.dtype)), spread(jnp.ones_like(intensity))
    return levels / jnp.where(weights > 0, weights, 1)


def refuses_pooling(layer: Layer) -> str:
    """Returns why light can't carry a layer as a pooling; empty if it can."""
    operations = {node.primitive for node in layer.nodes}
    averages = bool(operations & _SUMS) and bool(operations & prim.SCALING)
    results = [v for v in layer.outputs if not v.spread]
    single = len(_signals(layer)) == len(results) == 1
    if layer.kind in {"pooling", "reduction"} and averages and single:
        return ""
    return "Chaotic light can carry average pooling only, as 'avg_pool*'"


def carry_pooling(
    key: PRNGKeyArray, layer: Layer, values: Sequence[Any], light: _light.Carrier
) -> Sequence[Any]:
    """Returns a pooling layer's outputs as read out of chaotic light."""
    i, result, pool = pooling_of(layer, values)
    outputs = list(layer.fn(*values))
    outputs[result] = probabilistic_pooling(key, values[i], light, pool)
    return outputs


def read_pooling(layer: Layer, values: Sequence[Any], light: _light.Carrier) -> tuple[Array, Array]:
    """Computes the mean and variance of a pooling layer's reading."""
    i, _, pool = pooling_of(layer, values)
    activations = quant_relu(values[i], light.bits, light.full_scale)
    intensity = pool(activations)
    core.check_broadcasts("ChaoticLight.noise", light.noise, intensity.shape)
    if light.pattern == "after":
        return intensity, _light.noise_sigma(intensity, light) ** 2
    each = replace(light, noise=_noise_before(activations, intensity, light, pool))
    return intensity, _light.pattern_sigma(
        jax.vmap(pool)(_light.slot_pattern(activations, each)), light
    ) ** 2


def pooling_of(layer: Layer, values: Sequence[Any]) -> tuple[int, int, Callable[[Any], Any]]:
    """Returns the index of the pooled input, that of its output, and the pooling as a function."""
    (i,) = _signals(layer)
    (result,) = (i for i, v in enumerate(layer.outputs) if not v.spread)

    def pool(x: Any) -> Any:
        return layer.fn(*values[:i], x, *values[i + 1 :])[result]

    return i, result, pool


def _signals(layer: Layer) -> list[int]:
    return [i for i in layer.data if not layer.inputs[i].spread]


@core.register_setting
class ChaoticLight(_light.Carrier):
    """Chaotic light as the carrier of an average pooling layer's activations.

    `ChaoticLight` says how an intensity is spread over time slots, and the noise that follows from
    it: `jaxeff.photonics.sigma_bounds` has the deviations that light can have, and the setting's
    `noise` L in [0, 1] picks between them.

    Both the training model and the simulation take activations through a quantized ReLU and the
    pooling itself. The training model then adds Gaussian noise of a learnable deviation. The
    simulation spreads the pooled intensity over slots, rounds each slot's amplitude stochastically
    to what the modulator can show, draws photon counts from the exact Bose-Einstein distribution,
    lets the detector saturate, adds electronic noise per slot, and sums. Mean and variance of both
    agree exactly while `levels` and `saturation` are None.

    `light.pattern` says where pulses are made. "after": of the pooled intensity. "before", as the
    thesis draws it: of each activation, with the noise level of the window that it is in, rounded
    to the amplitude levels, then pooled slot by slot. The crossbar is linear, so an even split is
    the same in both; full slots of different activations end at different places, and their mean is
    a smoother train than the mean's own: the largest noise is smaller.

    Sharp edges:
        "before" takes `slots` times the memory of the activations in the Gaussian model too.
        Stochastic rounding adds variance the training model doesn't know: up to
        (1 + 1/M) (cap / (levels - 1))² / 4 per slot.
        The simulation's gradient is that of its input intensity (straight-through); its noise level
        gets none. Train with the Gaussian model.
        Light is positive, but the Gaussian model's output can be negative: the next quantized ReLU
        cuts it off.
        The thesis publishes neither the number of slots nor the photon rate or noise floor.
        `slots`, `cap`, `photons` and `electronic` and the form of the bounds are ours: the smallest
        noise is an even split over all slots, the largest the fewest full slots, and every slot
        read adds the same electronic noise.
        The largest intensity that fits is `slots * cap`. Scale activations to it.
        `noise` must stay in [0, 1] in training: make it a sigmoid of the trained parameter.
        With `channel`, noise is no longer independent between the entries of the last axis; only
        the light's is shared, and only where pulses fall into the same slots. Deviations stay as
        they are.
        With `correlation`, slots share modes and average out less: both bounds rise, and an even
        split isn't quite the quietest one any more (slots at the ends are less alike).

    Attributes:
        noise: L, where the standard deviation lies between its bounds, in [0, 1] (but see "free");
            a scalar, or an array that broadcasts against the pooled activations. Meant to be
            learned.
        cap: Largest intensity of one slot, in the units of the activations.
        modes: Degeneracy factor M of the light in one slot.
        photons: Photons per unit of intensity: the scale of shot noise (ours).
        electronic: Standard deviation of the electronic noise of one slot read, in the units of
            the activations (the value is ours).
        correlation: Correlation of the light in neighbouring slots, in [0, 1) (ours); a Python
            number is known to the compiler, which leaves it out if it is 0.
        channel: Correlation of the light in any two wavelength channels, in [0, 1) (ours). The last
            axis of what is carried counts them: its entries are carried at once, each by its
            wavelength.
        saturation: Detector reading at which one slot saturates, or None. Physical model only.
        slots: Number of time slots per activation.
        bits: Bit width of the quantized ReLU in front of the pooling, 1 to 8, or None.
        levels: Number of amplitudes a slot can have, zero and `cap` included, reached by
            stochastic rounding; or None. Physical model only.
        model: "gaussian", the differentiable training model, or "physical", the simulation with
            exact Bose-Einstein statistics. "free" is what no hardware does, to compare with:
            Gaussian noise of the deviation L sigma_max, however small or large.
        pattern: Whether pulses are made "after" pooling, one train per pooled activation, or
            "before" it, as the thesis draws it: one per activation, pooled slot by slot.

    Raises:
        TypeError: `slots`, `bits` or `levels` isn't an integer.
        ValueError: A number is out of range, or `model` is unknown.

    References:
        Brückerhoff-Plückelmann et al., "Probabilistic photonic computing with chaotic light",
        Nature Communications 15, 10445 (2024).
    """

    def refuses(self, layer: Layer) -> str:
        return refuses_pooling(layer)

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        return carry_pooling(key, layer, values, self)

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        return read_pooling(layer, values, self)


@runtime_checkable
class PhotonicElement(Protocol):
    """An optical element that takes a layer's place; any object with these methods will do."""

    def refuses(self, layer: Layer) -> str:
        """Returns why it can't carry a layer, as the end of an error message; empty if it can."""
        ...

    def carry(self, key: PRNGKeyArray, layer: Layer, values: Sequence[Any]) -> Sequence[Any]:
        """Returns the layer's outputs as read out, given its inputs."""
        ...


@runtime_checkable
class ReadElement(PhotonicElement, Protocol):
    """An element with the mean and variance of its reading, as `jaxeff.moments` needs them."""

    def read(self, layer: Layer, values: Sequence[Any]) -> tuple[Array, Array]:
        """Computes the mean and variance of the layer's reading, given its inputs."""
        ...


SLACK = 1e-5
"""Relative tolerance of a deviation at its bounds, for rounding."""


@core.validate(
    sigma=core.real_array(nan=True),
    light=core.instance_of(ChaoticLight),
    intensity=core.real_array(nan=True, empty=True),
)
def noise_for(
    sigma: Float[Array, "..."] | float, intensity: Float[Array, "*shape"], light: ChaoticLight
) -> Float[Array, "*shape"]:
    """Returns the level L of `ChaoticLight.noise` with which an intensity has a standard deviation.

    `noise_for` is the noise level L that gives an intensity the deviation that is asked for.

    ```python
    import jax.numpy as jnp

    from jaxeff.photonics import ChaoticLight, noise_for, sigma_bounds

    light = ChaoticLight(slots=8, electronic=0.01)
    sigma_bounds(jnp.array(2.0), light)                  # 0.223 and 0.437
    noise_for(0.3, jnp.array(2.0), light)                # 0.360
    ```

    Args:
        sigma: Standard deviation in the units of the intensity; broadcasts against it.
        intensity: Between zero and `light.full_scale`.
        light: The hardware; its own `noise` plays no part.

    Returns:
        Numbers between 0 and 1; 0 where the hardware leaves no choice.

    Raises:
        ValueError: A deviation lies outside what the hardware can do, or an intensity is negative,
            NaN or above full scale; where they are concrete.
    """
    if core.is_concrete(light.full_scale):
        core.check_number("intensity", intensity, 0, float(light.full_scale) * (1 + SLACK))
    smallest, largest = _light.sigma_bounds(intensity, light)
    sigma = jnp.broadcast_to(core.with_leading_axes(sigma, smallest.shape), smallest.shape).astype(
        smallest.dtype
    )
    _check_within(sigma, intensity, smallest, largest, light)
    # The inverse of sigma = L sigma_max + (1 - L) sigma_min (Klein's thesis, figure 10.4).
    span = largest - smallest
    return jnp.clip((sigma - smallest) / jnp.where(span > 0, span, 1), 0, 1)


def _check_within(sigma: Any, intensity: Any, low: Any, high: Any, light: ChaoticLight) -> None:
    if not all(map(core.is_concrete, (sigma, low, high))):
        return
    wanted, low, high = (np.asarray(jax.device_get(v), float) for v in (sigma, low, high))
    bad = ~((wanted >= low * (1 - SLACK)) & (wanted <= high * (1 + SLACK)))
    if not bad.any():
        return
    at = tuple(np.argwhere(bad)[0])
    value = float(np.asarray(intensity)[at])
    raise ValueError(
        f"{bad.sum()} of {bad.size} deviations are outside the hardware's range: sigma "
        f"{wanted[at]:.4g} at intensity {value:.4g}, where {light.slots} slots of cap "
        f"{float(light.cap):.4g} can have {low[at]:.4g} to {high[at]:.4g}. More slots lower "
        "the range, a larger cap raises it."
    )
