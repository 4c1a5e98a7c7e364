"""Pulse trains: the deviations that an intensity of chaotic light can have, and their pulses.

Light in k slots of equal intensity has excess noise I²/(kM): the same total in few strong pulses is
noisier than in many weak ones. `sigma_bounds` gives the ends of that range, `noise_sigma` what
`ChaoticLight.noise` picks of it, `slot_pattern` pulses of exactly this deviation, and
`pattern_sigma` the deviation of any pulses. `ChaoticLight` lists what the source leaves open.

```python
import jax.numpy as jnp

from jaxeff.photonics import ChaoticLight, noise_sigma, pattern_sigma, sigma_bounds, slot_pattern

light = ChaoticLight(noise=0.25, slots=8)
intensity = jnp.array([0.5, 2.0, 6.0])
low, high = sigma_bounds(intensity, light)               # of an even split, of few full slots
sigma = noise_sigma(intensity, light)                    # a quarter of the way up
assert jnp.allclose(sigma, low + 0.25 * (high - low))

pulses = slot_pattern(intensity, light)                  # [8 slots, 3]
assert jnp.allclose(pulses.sum(0), intensity)
assert jnp.allclose(pattern_sigma(pulses, light), sigma, rtol=1e-4)
```
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import check_number, instance_of, real_array, validate, with_leading_axes
from jaxeff.photonics.light._carrier import Carrier


@validate(light=instance_of(Carrier), intensity=real_array(nan=True, empty=True))
def sigma_bounds(
    intensity: Float[Array, "*shape"], light: Carrier
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Returns the smallest and largest standard deviation an intensity can be given.

    Args:
        intensity: Pooled activations, between zero and `light.full_scale`; larger ones are cut off.
        light: The setting.

    Returns:
        The deviation of an even split over all slots, and that of the fewest full slots, in the
        units of the intensity. Both contain shot noise and the electronic noise of all slots.

    Raises:
        ValueError: An intensity is negative or NaN, where it is concrete.
    """
    check_number("intensity", intensity, 0)
    intensity = _carried(intensity, light)
    floor = intensity / light.photons + light.slots * light.electronic**2
    if light.remembers:
        even, fewest = _patterns(intensity, light)
        smallest, largest = (floor + excess(p, p, light) for p in (even, fewest))
    else:
        # Excess noise is the sum of squares of the pulses: least for an even split, most
        # where as few slots as possible are full.
        full = jnp.floor(intensity / light.cap)
        rest = intensity - full * light.cap
        smallest = floor + intensity**2 / (light.slots * light.modes)
        largest = floor + (full * light.cap**2 + rest**2) / light.modes
    return _root(smallest), _root(jnp.maximum(largest, smallest))


@validate(light=instance_of(Carrier), intensity=real_array(nan=True, empty=True))
def noise_sigma(intensity: Float[Array, "*shape"], light: Carrier) -> Float[Array, "*shape"]:
    """Returns the standard deviation that `light.noise` picks: L sigma_max + (1 - L) sigma_min."""
    smallest, largest = sigma_bounds(intensity, light)
    noise = with_leading_axes(light.noise, jnp.shape(intensity))
    if light.model == "free":
        return noise * largest
    return noise * largest + (1 - noise) * smallest


@validate(light=instance_of(Carrier), intensity=real_array(nan=True, empty=True))
def slot_pattern(intensity: Float[Array, "*shape"], light: Carrier) -> Float[Array, "slots ..."]:
    """Makes the pulse train of an intensity, with the deviation that `light.noise` picks.

    Args:
        intensity: Pooled activations, between zero and `light.full_scale`; larger ones are cut off.
        light: The setting.

    Returns:
        One intensity per slot, each between zero and `light.cap`; their sum is `intensity`.

    Raises:
        ValueError: An intensity is negative or NaN, where it is concrete.
    """
    smallest, largest = sigma_bounds(intensity, light)
    even, fewest = _patterns(_carried(intensity, light), light)
    noise = with_leading_axes(light.noise, jnp.shape(intensity))
    if light.remembers:
        t = _mixture(even, fewest, noise * (largest - smallest), smallest, light)
    else:
        # A mixture even + t (fewest - even) has variance sigma_min² + t² (sigma_max² -
        # sigma_min²), because fewest - even sums to zero. Solve for the t that gives L's deviation.
        total = smallest + largest
        share = noise * (2 * smallest + noise * (largest - smallest))
        t = _root(share / jnp.where(total > 0, total, 1))
    return even + t[None] * (fewest - even)


@validate(pulses=real_array(), light=instance_of(Carrier))
def pattern_sigma(pulses: Float[Array, "slots ..."], light: Carrier) -> Float[Array, "..."]:
    """Returns the standard deviation of a pulse train's summed readings, electronic noise included.

    Args:
        pulses: One intensity per slot.
        light: The setting.
    """
    floor = jnp.sum(pulses, axis=0) / light.photons + light.slots * light.electronic**2
    return _root(floor + excess(pulses, pulses, light))


def _patterns(intensity: Array, light: Carrier) -> tuple[Array, Array]:
    """Returns the pulses of an even split, and the fewest full slots."""
    # Slots are filled one after the other, the last one in part: both trains are piecewise linear
    # in the intensity, so they have gradients.
    slot = jnp.arange(light.slots, dtype=intensity.dtype).reshape(-1, *[1] * intensity.ndim)
    fewest = jnp.clip(intensity[None] - slot * light.cap, 0, light.cap)
    return jnp.broadcast_to(intensity[None] / light.slots, fewest.shape), fewest


def _mixture(even: Array, fewest: Array, above: Array, smallest: Array, light: Carrier) -> Array:
    """Returns the share of the fewest slots that gives a deviation, where slots are correlated."""
    moved = fewest - even
    # The excess of even + t moved is quadratic in t: excess(even) + 2 t cross + t^2 square.
    cross, square = excess(even, moved, light), excess(moved, moved, light)
    wanted = above * (2 * smallest + above)  # what variance it adds
    root = _root(jnp.maximum(cross**2 + square * wanted, 0)) + cross
    # The stable form of the root: wanted / (cross + sqrt(...)); cross may be slightly negative.
    return jnp.clip(wanted / jnp.where(root > 0, root, 1), 0, 1)


def excess(a: Array, b: Array, light: Carrier) -> Array:
    """Computes the covariance of the light that two pulse trains carry in the same slots."""
    if not light.remembers:
        return jnp.sum(a * b, axis=0) / light.modes
    return jnp.sum(a * jnp.tensordot(slot_correlation(light, a.dtype), b, 1), axis=0) / light.modes


def slot_correlation(light: Carrier, dtype: Any) -> Float[Array, "slots slots"]:
    """Returns the correlation of the light in any two slots."""
    slot = jnp.arange(light.slots)
    apart = jnp.abs(slot[:, None] - slot[None])
    # 0⁰ has no gradient.
    alike = jnp.asarray(light.correlation, dtype) ** jnp.maximum(apart, 1).astype(dtype)
    return jnp.where(apart == 0, jnp.ones((), dtype), alike)


def _carried(intensity: Array, light: Carrier) -> Array:
    return jnp.clip(intensity, 0, light.full_scale)


def _root(x: Array) -> Array:
    """Returns the square root, with a gradient of zero instead of infinity at zero."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1)), 0)
