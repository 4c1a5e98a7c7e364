"""Detectors: readings of pulses, photon counts from tables, light fitted to measurements.

`read_pulses` draws what the detector reads of pulses: photon counts, saturation, electronic noise.
Photon counts as a Gamma and a Poisson draw cost hundreds of operations. A modulator with amplitude
levels has few mean intensities, known before the program is compiled; their distributions are kept
in a table (`count_table`; Klein's thesis, figure 10.5), from which the alias method draws with two
random words and two look-ups, however wide the distribution.

```python
import numpy as np

from jaxeff.photonics import ChaoticLight, fit_light

mean = np.linspace(0, 1, 11)                             # readings at eleven intensities
variance = mean**2 / 10.64 + mean / 500 + 0.02**2        # measured, in practice
fitted = fit_light(mean, variance)                       # modes 10.64, photons 500, electronic 0.02
light = ChaoticLight(modes=fitted.modes, photons=fitted.photons, electronic=fitted.electronic)
```

Sharp edges:
    a table needs `cap`, `photons` and `modes` when the program is traced. Where they are traced
    themselves, counts are drawn anew.
    a saturating detector narrows readings at large means; leave those out.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy  # its `special` is loaded when first used, a fifth of a second after import
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32

from jaxeff.core import is_concrete, real_array, validate
from jaxeff.photonics._light import Carrier, chaotic_intensity, photon_counts, poisson_counts


class CountTable(NamedTuple):
    """Distributions of photon counts, as columns of equal probability with two counts each.

    Attributes:
        share: Share of each column that belongs to its own count, in units of 2⁻³².
        other: The count that the rest of the column belongs to.

    References:
        Vose, "A linear algorithm for generating random numbers with a given distribution", IEEE
        Transactions on Software Engineering 17 (1991).
    """

    share: UInt32[np.ndarray, "means n"]
    other: Int[np.ndarray, "means n"]


def table_width(mean: float, modes: float) -> int:
    """Returns how many columns hold all counts but about one in 10¹¹: a power of two."""
    # Twelve deviations, and some for the longer tail of small means; a power of two, so that the
    # leading bits of a random word number a column.
    top = mean + 12 * (mean + mean**2 / modes) ** 0.5 + 40
    return 1 << int(np.ceil(np.log2(top)))


def count_table(means: Float[np.ndarray, " means"], modes: float) -> CountTable:
    """Returns M-fold Bose-Einstein distributions of some means; the last counts have the rest."""
    counts = np.arange(table_width(float(np.max(means)), modes))
    ratio = np.asarray(means, float)[:, None] / modes
    chosen = (
        scipy.special.gammaln(counts + modes)
        - scipy.special.gammaln(modes)
        - scipy.special.gammaln(counts + 1)
    )
    # The density of `BoseEinstein.log_prob`, in float64: large terms cancel to order one.
    some = counts * np.log(np.where(ratio > 0, ratio, 1))
    logs = chosen - (modes + counts) * np.log1p(ratio) + np.where(ratio > 0, some, 0)
    mass = np.where(ratio > 0, np.exp(logs), counts == 0)
    # The tail beyond the last column is spread by renormalizing.
    columns = [_aliases(row / row.sum()) for row in mass]
    share = np.minimum(np.round(np.array([c[0] for c in columns]) * 2.0**32), 2.0**32 - 1)
    return CountTable(share.astype(np.uint32), np.array([c[1] for c in columns], np.int32))


def tabled_counts(
    key: PRNGKeyArray, which: Int[Array, "*shape"], table: CountTable
) -> Int[Array, "*shape"]:
    """Draws photon counts by look-up.

    `which` are rows of the table (`count_table`); others than it has aren't noticed.
    """
    width = table.share.shape[1]
    # One word chooses the column, by its leading bits, the other one a side of it: uniform, without
    # a division or a search.
    column, part = jax.random.bits(key, (2, *which.shape), jnp.uint32)
    column_index = (column >> np.uint32(33 - width.bit_length())).astype(jnp.int32)
    at = which * width + column_index
    share, other = (  # within bounds always; the check would take twice as long as the look-up
        jnp.asarray(part).ravel().at[at].get(mode="promise_in_bounds") for part in table
    )
    return jnp.where(part < share, column_index, other)


def _aliases(mass: Float[np.ndarray, " n"]) -> tuple[list[float], list[int]]:
    """Returns the share of each column's own count, and the other count of the column."""
    share, other = (mass * len(mass)).tolist(), list(range(len(mass)))
    # Vose: each column below the mean is filled up from one above it, which then has less: n steps,
    # no sorting.
    poor = [i for i, value in enumerate(share) if value < 1]
    rich = [i for i, value in enumerate(share) if value >= 1]
    while poor and rich:
        i, j = poor.pop(), rich[-1]
        other[i] = j
        share[j] -= 1 - share[i]
        if share[j] < 1:
            poor.append(rich.pop())
    for i in poor + rich:  # what rounding left over
        share[i] = 1.0
    return share, other


MOST_ENTRIES = 1 << 20
"""Of a table, 8 MB."""


def rounded_pulses(
    key: PRNGKeyArray, pulses: Float[Array, "slots ..."], light: Carrier
) -> Float[Array, "slots ..."]:
    """Rounds pulses to amplitudes that the modulator has, up or down so that the mean stays.

    Pulses are between zero and `light.cap`; without `levels` they stay as they are.
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

    Pulses are one intensity per slot; `rounded` says whether they are at the setting's levels.
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

    Pulses are one intensity per slot.
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


Values = Float[Array | np.ndarray, " points"]


class Measured(NamedTuple):
    """The numbers of a light source and its detector.

    Attributes:
        modes: Degeneracy factor M; infinite if there is no excess noise.
        photons: Photons per unit of the readings; infinite if there is no shot noise.
        electronic: Standard deviation of a reading without light, in the units of the readings.
    """

    modes: float
    photons: float
    electronic: float


@validate(mean=real_array(1), variance=real_array(1))
def fit_light(mean: Values, variance: Values) -> Measured:
    """Fits the parabola, every point by its relative error, with coefficients that aren't negative.

    `fit_light` goes the other way, from measured means and variances to modes, photon rate and
    electronic noise. A reading I of chaotic light in one slot has the variance I²/M + I/photons +
    electronic²: a parabola whose coefficients are the three numbers (Klein's thesis, eq. (10.1),
    with M = 10.64 by such a fit).

    Args:
        mean: Mean readings at several intensities, not negative.
        variance: Their variances, positive.

    Raises:
        ValueError: Fewer than three points, of different lengths, or numbers that are negative,
            NaN or infinite.
    """
    from scipy.optimize import nnls  # slow to load, and only needed here

    x, y = (np.asarray(jax.device_get(v), float) for v in (mean, variance))
    if x.ndim != 1 or x.shape != y.shape or len(x) < 3:
        raise ValueError(
            f"fit_light needs as many variances as means, at least three, not shapes {x.shape} "
            f"and {y.shape}."
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all() and x.min() >= 0 and y.min() > 0):
        raise ValueError("fit_light needs finite means of zero or more and positive variances.")
    scale = max(x.max(), 1e-300)  # columns of one size
    # Divided by the variances: each point counts by its relative error, so that small readings,
    # which alone show the electronic noise, aren't drowned by large ones.
    columns = np.stack([np.ones_like(x), x / scale, (x / scale) ** 2], 1) / y[:, None]
    # Non-negative: a source of noise takes no variance away, but scatter in the data could make its
    # coefficient negative.
    floor, shot, excess = nnls(columns, np.ones_like(x))[0] / [1, scale, scale**2]
    modes, photons = (1 / float(v) if v > 0 else float("inf") for v in (excess, shot))
    return Measured(modes, photons, float(floor**0.5))
