"""Chaotic light: photon counts, correlation, and the pulse trains that carry an intensity.

An intensity is sent as a train of pulses, and the train decides its noise. Light in k slots of
equal intensity has excess noise I²/(kM): the same total in few strong pulses is noisier than in
many weak ones.

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

`ChaoticLight` lists what the thesis leaves open.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff import core

MODES = 10.64  # measurement time over coherence time of the published set-up
TINY = float(jnp.finfo(jnp.float32).tiny)


@core.validate(shape=core.static_integers())
def photon_counts(
    key: PRNGKeyArray,
    mean: Float[Array, "..."],
    modes: Float[Array, "..."] | float,
    shape: tuple[int, ...],
) -> Int[Array, "..."]:
    """Draws photon counts.

    The count of a detector is a Poisson count whose rate is Gamma(M, n / M) distributed, which is
    the M-fold Bose-Einstein distribution (`BoseEinstein` has its density and moments).

    ```python
    import jax
    import jax.numpy as jnp

    from jaxeff.photonics import photon_counts

    mean, modes = 20.0, 5.0
    counts = photon_counts(jax.random.key(0), jnp.array(mean), modes, (20_000,))
    assert abs(counts.mean() / mean - 1) < 0.05
    assert abs(counts.var() / (mean + mean**2 / modes) - 1) < 0.05
    ```

    Args:
        key: Random key.
        mean: Mean photon number, never negative; broadcasts to `shape`.
        modes: Degeneracy factor M, positive; broadcasts likewise.
        shape: Shape of the draws.

    Returns:
        Integer counts.

    Raises:
        TypeError: `mean` or `modes` holds no real numbers.
        ValueError: A mean is negative or NaN, or `modes` isn't positive; where they are concrete.
    """
    core.check_number("mean", mean, 0)
    core.check_number("modes", modes, above=0)
    core.check_broadcasts("photon_counts: mean", mean, tuple(shape))
    gamma_key, poisson_key = jax.random.split(key)
    modes = jnp.broadcast_to(jnp.asarray(modes, mean.dtype), shape)
    # A Poisson count of a Gamma rate is the M-fold Bose-Einstein distribution, with variance n +
    # n²/M (Klein's thesis, eq. (10.1)).
    intensity = jax.random.gamma(gamma_key, modes, shape, mean.dtype) / modes
    return poisson_counts(poisson_key, mean * intensity)


def poisson_counts(key: PRNGKeyArray, rate: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """Draws Poisson counts from a key of any kind; JAX has them for its default kind only."""
    # JAX's Poisson sampler takes threefry keys alone: one is drawn from the key that is given.
    kind = jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl="threefry2x32")
    return jax.random.poisson(kind, rate, rate.shape)


Correlation = Annotated[Float[Array, ""] | float, core.Number(0, below=1)]


@core.validate(shape=core.static_integers())
def chaotic_intensity(
    key: PRNGKeyArray,
    shape: tuple[int, ...],
    modes: Float[Array, ""] | float = MODES,
    *,
    time: Float[Array, ""] | float = 0.0,
    channel: Float[Array, ""] | float = 0.0,
) -> Float[Array, "times channels ..."]:
    """Draws the intensity of chaotic light relative to its mean: mean 1, variance 1 / M.

    Two readings closer than the coherence time, or two channels that aren't fully apart, share
    modes. Here a share of the modes stays from one reading to the next, and a share is common to
    all channels: every intensity is Gamma distributed exactly, correlations fall as
    time^|difference| and are `channel` between channels, and both are products where readings
    differ in both.

    ```python
    import jax, jax.numpy as jnp
    from jaxeff.photonics import chaotic_intensity

    light = chaotic_intensity(jax.random.key(0), (20_000, 2), modes=4.0, time=0.5, channel=0.1)
    print(jnp.corrcoef(light[1:, 0], light[:-1, 0])[0, 1])     # 0.5, of neighbouring readings
    print(jnp.corrcoef(light.T)[0, 1])                         # 0.1, of the channels
    ```

    Sharp edge: the process is ours; the thesis names both correlations, without a form or a number.

    Args:
        key: Random key.
        shape: Readings in a row, wavelength channels, and any further axes, which are independent.
        modes: Degeneracy factor M of a reading.
        time: Correlation of neighbouring readings, in [0, 1).
        channel: Correlation between any two channels, in [0, 1).

    Returns:
        Positive numbers.

    Raises:
        TypeError: A number is none, or the key is none.
        ValueError: A shape without axes of times and channels, `modes` that aren't positive, or a
            correlation outside [0, 1).

    References:
        The autoregressive Gamma process: McKenzie, "An autoregressive process for beta random
        variables", Management Science 31 (1985); Goodman, "Statistical Optics".
    """
    if len(shape) < 2:
        raise ValueError(f"shape must begin with readings and channels, but is {shape}.")
    core.check_number("modes", modes, above=0)
    core.check_number("time", time, 0, below=1)
    core.check_number("channel", channel, 0, below=1)
    common, channel_key = jax.random.split(key)
    modes, time, channel = (jnp.asarray(value, jnp.float32) for value in (modes, time, channel))
    # Gamma numbers of one rate add up: M (1 - c) own modes and M c common ones make M modes
    # with correlation c between channels, exactly.
    light = _process(channel_key, modes * (1 - channel), shape, time)
    light += _process(common, modes * channel, (shape[0], 1, *shape[2:]), time)
    return light / modes


def effective_samples(
    times: int, channels: int = 1, *, time: float = 0.0, channel: float = 0.0, excess: float = 1.0
) -> float:
    """Computes the number of independent readings worth as much as correlated ones.

    ```python
    from jaxeff.photonics import effective_samples, excess_share

    effective_samples(100, time=0.5)                      # 33.8 of 100
    effective_samples(1, 100, channel=0.1)                # 9.2: a common share doesn't average out
    share = excess_share(mean=100.0, modes=4.0)           # the rest of the variance is shot noise
    effective_samples(100, time=0.5, excess=share)        # so that averaging helps a bit more
    ```

    Sharp edge: only the light is correlated. Shot noise and electronic noise are new in every
    reading: `excess` is the light's share of a reading's variance.

    Args:
        times: Readings in a row, in each channel.
        channels: Wavelength channels read at once.
        time: Correlation of the light in neighbouring readings, in [0, 1).
        channel: Correlation of the light between channels, in [0, 1).
        excess: The light's share of the variance of a reading, in [0, 1]; see `excess_share`.

    Returns:
        A number of samples, at most `times * channels`.

    Raises:
        TypeError: A number is none.
        ValueError: A count is below 1, a correlation outside [0, 1), or a share outside [0, 1].
    """
    core.check_count("times", times)
    core.check_count("channels", channels)
    core.check_number("time", time, 0, below=1)
    core.check_number("channel", channel, 0, below=1)
    core.check_number("excess", excess, 0, 1)
    # The variance of a mean of n readings of an AR(1) process over that of n independent ones.
    apart = 1 + 2 * sum((1 - k / times) * time**k for k in range(1, times))
    common = 1 + (channels - 1) * channel
    # Only the light's share is correlated; shot and electronic noise average out as ever. Time and
    # channels multiply, as their correlations do.
    return float(times * channels / (1 - excess + excess * apart * common))


def excess_share(mean: float, modes: float = MODES, electronic: float = 0.0) -> float:
    """Computes the light's share of a photon count's variance: n²/M over n + n²/M + electronic².

    ```python
    from jaxeff.photonics import excess_share

    share = excess_share(mean=100.0, modes=4.0)     # the rest of the variance is shot noise
    ```

    Args:
        mean: Mean photon number n.
        modes: Degeneracy factor M.
        electronic: Standard deviation of the electronic noise, in photons.

    Raises:
        TypeError: A number is none.
        ValueError: The mean or the electronic noise is negative, or `modes` isn't positive.
    """
    core.check_number("mean", mean, 0)
    core.check_number("modes", modes, above=0)
    core.check_number("electronic", electronic, 0)
    excess = mean**2 / modes
    return float(excess / max(mean + excess + electronic**2, TINY))


def _process(
    key: PRNGKeyArray, modes: Float[Array, ""], shape: tuple[int, ...], time: Float[Array, ""]
) -> Float[Array, "times ..."]:
    """Draws a Gamma process of unit rate: a Beta-distributed part stays, and new light joins it."""
    first, part, joining = jax.random.split(key, 3)
    light = _gamma(first, modes, shape[1:])
    later = (shape[0] - 1, *shape[1:])
    stays, leaves = (_gamma(k, a, later) for k, a in zip(
        jax.random.split(part), (modes * time, modes * (1 - time)), strict=True
    ))  # fmt: skip
    # Thinning: a Gamma(M) number times Beta(M t, M (1 - t)) is Gamma(M t); a new Gamma(M (1
    # - t)) makes it Gamma(M) again, with correlation t to the number before.
    kept = stays / jnp.maximum(stays + leaves, TINY)
    new = _gamma(joining, modes * (1 - time), later)

    def step(light: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        light = now[0] * light + now[1]
        return light, light

    # In sequence, for each reading keeps a part of the one before; memory is that of the result.
    return jnp.concatenate([light[None], jax.lax.scan(step, light, (kept, new))[1]])


def _gamma(key: PRNGKeyArray, shape: Array, size: tuple[int, ...]) -> Array:
    """Draws Gamma numbers; zero where their shape is."""
    drawn = jax.random.gamma(key, jnp.broadcast_to(jnp.maximum(shape, TINY), size), size)
    return jnp.where(shape > 0, drawn, 0)


MODELS = ("gaussian", "physical", "free")
ORDERS = ("after", "before")


@dataclass(frozen=True)
class Carrier(core.Setting):
    """The fields of `ChaoticLight`."""

    noise: core.NonNegative = 0.5
    cap: Annotated[Float[Array, ""] | float, core.Number(TINY)] = 1.0
    modes: Annotated[Float[Array, ""] | float, core.Number(TINY)] = MODES
    photons: Annotated[Float[Array, ""] | float, core.Number(TINY)] = 1000.0
    electronic: core.NonNegative = 0.01
    correlation: Correlation = core.static_number(0.0)
    channel: Correlation = core.static_number(0.0)
    saturation: Annotated[Float[Array, ""] | float | None, core.Number(TINY)] = None
    slots: Annotated[int, core.Count()] = core.static(8)
    bits: Annotated[int | None, core.Count(1, 8)] = core.static(None)
    levels: Annotated[int | None, core.Count(2)] = core.static(None)
    model: Annotated[str, core.Choice(*MODELS)] = core.static("gaussian")
    pattern: Annotated[str, core.Choice(*ORDERS)] = core.static("after")

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        if self.model != "free":
            core.check_number(f"{name}.noise", self.noise, 0, 1)
        elif self.pattern == "before":
            raise ValueError(f"{name}.model 'free' has no pulses to make before pooling.")
        elif self.couples:
            raise ValueError(f"{name}.model 'free' has no pulses whose channels could be alike.")

    @property
    def full_scale(self) -> Float[Array, ""] | float:
        """The largest intensity that fits, in the units of the activations."""
        return self.slots * self.cap

    @property
    def remembers(self) -> bool:
        """Whether slots are correlated; a number that is traced might be anything."""
        return not (core.is_concrete(self.correlation) and not np.any(self.correlation))

    @property
    def couples(self) -> bool:
        """Whether wavelength channels are correlated; likewise."""
        return not (core.is_concrete(self.channel) and not np.any(self.channel))


@core.validate(light=core.instance_of(Carrier), intensity=core.real_array(nan=True, empty=True))
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
    core.check_number("intensity", intensity, 0)
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


@core.validate(light=core.instance_of(Carrier), intensity=core.real_array(nan=True, empty=True))
def noise_sigma(intensity: Float[Array, "*shape"], light: Carrier) -> Float[Array, "*shape"]:
    """Returns the standard deviation that `light.noise` picks: L sigma_max + (1 - L) sigma_min."""
    smallest, largest = sigma_bounds(intensity, light)
    noise = core.with_leading_axes(light.noise, jnp.shape(intensity))
    if light.model == "free":
        return noise * largest
    return noise * largest + (1 - noise) * smallest


@core.validate(light=core.instance_of(Carrier), intensity=core.real_array(nan=True, empty=True))
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
    noise = core.with_leading_axes(light.noise, jnp.shape(intensity))
    if light.remembers:
        t = _mixture(even, fewest, noise * (largest - smallest), smallest, light)
    else:
        # A mixture even + t (fewest - even) has variance sigma_min² + t² (sigma_max² -
        # sigma_min²), because fewest - even sums to zero. Solve for the t that gives L's deviation.
        total = smallest + largest
        share = noise * (2 * smallest + noise * (largest - smallest))
        t = _root(share / jnp.where(total > 0, total, 1))
    return even + t[None] * (fewest - even)


@core.validate(pulses=core.real_array(), light=core.instance_of(Carrier))
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
