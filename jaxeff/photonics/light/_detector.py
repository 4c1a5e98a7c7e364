"""From pulses to a reading: amplitudes that the modulator has, photon counts, the detector.

With amplitude levels there are so few different distributions that they are tables
(`jaxeff.photonics.light`), many times faster than a Gamma and a Poisson draw.

Sharp edge: a table needs `cap`, `photons` and `modes` when the program is traced. Where they are
traced themselves, counts are drawn anew.
"""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import is_concrete
from jaxeff.photonics.light._carrier import Carrier
from jaxeff.photonics.light._correlation import chaotic_intensity
from jaxeff.photonics.light._count_table import CountTable, count_table, table_width, tabled_counts
from jaxeff.photonics.light._photon_counts import photon_counts, poisson_counts

MOST_ENTRIES = 1 << 20
"""Of a table, 8 MB."""


def rounded_pulses(
    key: PRNGKeyArray, pulses: Float[Array, "slots ..."], light: Carrier
) -> Float[Array, "slots ..."]:
    """Rounds pulses to amplitudes that the modulator has, up or down so that the mean stays.

    Args:
        key: A PRNG key.
        pulses: Intensities between zero and `light.cap`.
        light: The setting; without `levels`, pulses stay as they are.
    """
    if light.levels is None:
        return pulses
    step = light.cap / (light.levels - 1)
    # Stochastic rounding, E floor(x + u) = x: a sum over slots has no bias (Klein's thesis, section
    # 10.4).
    dither = jax.random.uniform(key, pulses.shape, pulses.dtype)
    return jnp.clip(jnp.floor(pulses / step + dither), 0, light.levels - 1) * step


def read_pulses(
    count_key: PRNGKeyArray,
    read_key: PRNGKeyArray,
    pulses: Float[Array, "slots ..."],
    light: Carrier,
    rounded: bool = False,
) -> Float[Array, "..."]:
    """Draws the detector's reading of pulses, summed over slots.

    Args:
        count_key: Random key of the light.
        read_key: Random key of the electronics.
        pulses: One intensity per slot.
        light: The setting.
        rounded: Whether pulses are at the setting's levels.
    """
    # Correlated light can't come from a table or a count: its intensity is drawn first, photons
    # given it.
    if light.remembers or light.couples:
        light_key, count_key = jax.random.split(count_key)
        rate = light.photons * with_intensity_noise(light_key, pulses, light)
        counts = poisson_counts(count_key, rate)
    elif rounded and (table := _table(light)) is not None:
        step = light.cap / (len(table.share) - 1)
        counts = tabled_counts(count_key, jnp.round(pulses / step).astype(jnp.int32), table)
    else:
        counts = photon_counts(count_key, pulses * light.photons, light.modes, pulses.shape)
    reading = counts.astype(pulses.dtype) / light.photons
    if light.saturation is not None:
        # Slot by slot, before the sum: a detector saturates at its momentary intensity.
        reading = jnp.minimum(reading, light.saturation)
    total = jnp.sum(reading, axis=0)  # as is the electronic noise of all slots, one Gaussian
    noise = jax.random.normal(read_key, total.shape, total.dtype)
    return total + light.electronic * light.slots**0.5 * noise


def with_intensity_noise(
    key: PRNGKeyArray, pulses: Float[Array, "slots ..."], light: Carrier
) -> Float[Array, "slots ..."]:
    """Draws the light's fluctuations of pulses; the last axis counts wavelength channels.

    Args:
        key: A PRNG key.
        pulses: One intensity per slot.
        light: The setting.
    """
    couples = light.couples and pulses.ndim > 1
    if not (light.remembers or couples):
        relative = jax.random.gamma(key, light.modes, pulses.shape) / light.modes
        return pulses * relative.astype(pulses.dtype)
    channels = pulses.shape[-1] if couples else 1
    shape = (light.slots, channels, *pulses.shape[1 : -1 if couples else None])
    relative = chaotic_intensity(
        key, shape, light.modes, time=light.correlation, channel=light.channel if couples else 0.0
    )
    relative = jnp.moveaxis(relative, 1, -1) if couples else relative[:, 0]
    return pulses * relative.astype(pulses.dtype)


def _table(light: Carrier) -> CountTable | None:
    """Returns the table of a setting's levels, if they have one."""
    numbers = (light.cap, light.photons, light.modes)
    if light.levels is None or not all(map(is_concrete, numbers)):
        return None
    cap, photons, modes = (float(number) for number in numbers)
    if light.levels * table_width(cap * photons, modes) > MOST_ENTRIES:
        return None
    return _kept_table(cap * photons, light.levels, modes)


@lru_cache(maxsize=8)
def _kept_table(largest: float, levels: int, modes: float) -> CountTable:
    return count_table(np.linspace(0, largest, levels), modes)
