"""From pulses to a reading: amplitudes that the modulator has, photon counts, the detector.

With amplitude levels there are so few different distributions that their cumulative probabilities
are tables, as the source caches them (T4851): a count is then a random number looked up, many times
faster than a Gamma and a Poisson draw, and right to 2⁻³².

Sharp edge: a table needs `cap`, `photons` and `modes` when the program is traced. Where they are
traced themselves, counts are drawn anew.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.photonics.chaotic_light import ChaoticLight, is_correlated
from jaxeff.photonics.correlation import chaotic_intensity
from jaxeff.photonics.photon_counts import (
    count_table,
    photon_counts,
    poisson_counts,
    tabled_counts,
)
from jaxeff.settings import is_concrete

MOST_ENTRIES = 1 << 20
"""Of a table, 4 MB."""


def rounded_pulses(
    key: PRNGKeyArray, pulses: Float[Array, "slots ..."], light: ChaoticLight
) -> Float[Array, "slots ..."]:
    """Pulses at amplitudes that the modulator has, rounded up or down so that the mean stays.

    Args:
        key: A PRNG key.
        pulses: Intensities between zero and `light.cap`.
        light: The setting; without `levels`, pulses stay as they are.
    """
    if light.levels is None:
        return pulses
    step = light.cap / (light.levels - 1)
    dither = jax.random.uniform(key, pulses.shape, pulses.dtype)
    return jnp.clip(jnp.floor(pulses / step + dither), 0, light.levels - 1) * step


def read_pulses(
    count_key: PRNGKeyArray,
    read_key: PRNGKeyArray,
    pulses: Float[Array, "slots ..."],
    light: ChaoticLight,
    rounded: bool = False,
) -> Float[Array, "..."]:
    """What the detector makes of pulses, summed over slots.

    Args:
        count_key: Random key of the light.
        read_key: Random key of the electronics.
        pulses: One intensity per slot.
        light: The setting.
        rounded: Whether pulses are at the setting's levels.
    """
    if is_correlated(light):
        light_key, count_key = jax.random.split(count_key)
        shape = (light.slots, 1, *pulses.shape[1:])
        relative = chaotic_intensity(light_key, shape, light.modes, time=light.correlation)[:, 0]
        rate = pulses * light.photons * relative.astype(pulses.dtype)
        counts = poisson_counts(count_key, rate)
    elif rounded and (table := _table(light)) is not None:
        step = light.cap / (table.shape[0] - 1)
        counts = tabled_counts(count_key, jnp.round(pulses / step).astype(jnp.int32), table)
    else:
        counts = photon_counts(count_key, pulses * light.photons, light.modes, pulses.shape)
    reading = counts.astype(pulses.dtype) / light.photons
    if light.saturation is not None:
        reading = jnp.minimum(reading, light.saturation)
    reading += light.electronic * jax.random.normal(read_key, pulses.shape, pulses.dtype)
    return jnp.sum(reading, axis=0)


def _table(light: ChaoticLight) -> np.ndarray | None:
    """The table of a setting's levels, if they have one."""
    numbers = (light.cap, light.photons, light.modes)
    if light.levels is None or not all(map(is_concrete, numbers)):
        return None
    cap, photons, modes = (float(number) for number in numbers)
    largest = cap * photons
    if light.levels * (largest + 12 * (largest + largest**2 / modes) ** 0.5) > MOST_ENTRIES:
        return None
    return count_table(np.linspace(0, largest, light.levels), modes)
