"""Chaotic light that remembers: correlation in time and between wavelength channels.

Two readings closer than the coherence time, or two channels that aren't fully apart, share modes.
Here a share of the modes stays from one reading to the next, and a share is common to all channels:
every intensity is Gamma distributed exactly, correlations fall as time^|difference| and are
`channel` between channels, and both are products where readings differ in both.

```python
from jaxeff.photonics import effective_samples

effective_samples(100, time=0.5)                      # 33.8 of 100
effective_samples(1, 100, channel=0.1)                # 9.2: a common share doesn't average out
```

```python
import jax
import jax.numpy as jnp

from jaxeff.photonics import chaotic_intensity, effective_samples, excess_share

light = chaotic_intensity(jax.random.key(0), (20_000, 2), modes=4.0, time=0.5, channel=0.1)
print(jnp.corrcoef(light[1:, 0], light[:-1, 0])[0, 1])     # 0.5, of neighbouring readings
print(jnp.corrcoef(light.T)[0, 1])                         # 0.1, of the channels

share = excess_share(mean=100.0, modes=4.0)                # the rest of the variance is shot noise
effective_samples(100, time=0.5, excess=share)             # so that averaging helps a bit more
```

Sharp edges:
    Only the light is correlated. Shot noise and electronic noise are new in every reading:
    `excess` is the light's share of a reading's variance.
    The process is ours; the source names both correlations and gives neither a form nor a number.

References:
    The autoregressive Gamma process: McKenzie, "An autoregressive process for beta random
    variables", Management Science 31 (1985); Goodman, "Statistical Optics".
"""

from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import Number, check_count, check_key, check_number, static_integers, validate
from jaxeff.photonics.light._photon_counts import MODES, TINY

Correlation = Annotated[Float[Array, ""] | float, Number(0, below=1)]


@validate(shape=static_integers())
def chaotic_intensity(
    key: PRNGKeyArray,
    shape: tuple[int, ...],
    modes: Float[Array, ""] | float = MODES,
    *,
    time: Float[Array, ""] | float = 0.0,
    channel: Float[Array, ""] | float = 0.0,
) -> Float[Array, "times channels ..."]:
    """Draws the intensity of chaotic light relative to its mean: mean 1, variance 1 / M.

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
    """
    check_key("chaotic_intensity: key", key)
    if len(shape) < 2:
        raise ValueError(f"shape must begin with readings and channels, but is {shape}.")
    check_number("modes", modes, above=0)
    check_number("time", time, 0, below=1)
    check_number("channel", channel, 0, below=1)
    common, own = jax.random.split(key)
    modes, time, channel = (jnp.asarray(value, jnp.float32) for value in (modes, time, channel))
    # Gamma numbers of one rate add up: M (1 - c) own modes and M c common ones make M modes
    # with correlation c between channels, exactly.
    light = _process(own, modes * (1 - channel), shape, time)
    light += _process(common, modes * channel, (shape[0], 1, *shape[2:]), time)
    return light / modes


def effective_samples(
    times: int, channels: int = 1, *, time: float = 0.0, channel: float = 0.0, excess: float = 1.0
) -> float:
    """Computes the number of independent readings worth as much as correlated ones.

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
    check_count("times", times)
    check_count("channels", channels)
    check_number("time", time, 0, below=1)
    check_number("channel", channel, 0, below=1)
    check_number("excess", excess, 0, 1)
    # The variance of a mean of n readings of an AR(1) process over that of n independent
    # ones.
    apart = 1 + 2 * sum((1 - k / times) * time**k for k in range(1, times))
    common = 1 + (channels - 1) * channel
    # Only the light's share is correlated; shot and electronic noise average out as ever. Time and
    # channels multiply, as their correlations do.
    return float(times * channels / (1 - excess + excess * apart * common))


def excess_share(mean: float, modes: float = MODES, electronic: float = 0.0) -> float:
    """Computes the light's share of a photon count's variance: n²/M over n + n²/M + electronic².

    Args:
        mean: Mean photon number n.
        modes: Degeneracy factor M.
        electronic: Standard deviation of the electronic noise, in photons.

    Raises:
        TypeError: A number is none.
        ValueError: The mean or the electronic noise is negative, or `modes` isn't positive.
    """
    check_number("mean", mean, 0)
    check_number("modes", modes, above=0)
    check_number("electronic", electronic, 0)
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
