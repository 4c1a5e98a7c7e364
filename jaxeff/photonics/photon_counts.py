"""`photon_counts`: draws from the photon-count distribution of chaotic light.

A Poisson count whose rate is Gamma(M, n / M) distributed: the M-fold Bose-Einstein distribution,
whose density and moments `BoseEinstein` has. This file needs JAX alone.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt32
from scipy.special import gammaln

from jaxeff.settings import check_number

MODES = 10.64  # measurement time over coherence time of the published set-up
TINY = float(jnp.finfo(jnp.float32).tiny)


def photon_counts(
    key: PRNGKeyArray,
    mean: Float[Array, "..."],
    modes: Float[Array, "..."] | float,
    shape: tuple[int, ...],
) -> Int[Array, "..."]:
    """Draws photon counts.

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
    check_number("mean", mean, 0)
    check_number("modes", modes, above=0)
    gamma_key, poisson_key = jax.random.split(key)
    modes = jnp.broadcast_to(jnp.asarray(modes, mean.dtype), shape)
    intensity = jax.random.gamma(gamma_key, modes, shape, mean.dtype) / modes
    return poisson_counts(poisson_key, mean * intensity)


def poisson_counts(key: PRNGKeyArray, rate: Float[Array, "*shape"]) -> Int[Array, "*shape"]:
    """Draws Poisson counts from a key of any kind; JAX has them for its default kind only."""
    kind = jax.random.wrap_key_data(jax.random.bits(key, (2,), jnp.uint32), impl="threefry2x32")
    return jax.random.poisson(kind, rate, rate.shape)


def count_table(means: Float[np.ndarray, " means"], modes: float) -> UInt32[np.ndarray, "means n"]:
    """Cumulative probabilities of photon counts, in units of 2⁻³²; the last counts have the rest.

    Args:
        means: Mean photon numbers.
        modes: Degeneracy factor M.
    """
    largest = float(np.max(means))
    top = largest + 12 * (largest + largest**2 / modes) ** 0.5 + 40
    counts = np.arange((1 << int(np.ceil(np.log2(top)))) - 1)
    ratio = np.asarray(means, float)[:, None] / modes
    chosen = gammaln(counts + modes) - gammaln(modes) - gammaln(counts + 1)
    some = counts * np.log(np.where(ratio > 0, ratio, 1))
    logs = chosen - (modes + counts) * np.log1p(ratio) + np.where(ratio > 0, some, 0)
    mass = np.where(ratio > 0, np.exp(logs), counts == 0)
    cumulative = np.minimum(np.cumsum(mass, axis=1) * 2.0**32, 2.0**32 - 1)
    cumulative[:, -1] = 2.0**32 - 1
    return cumulative.astype(np.uint32)


def tabled_counts(
    key: PRNGKeyArray, which: Int[Array, "*shape"], table: UInt32[np.ndarray, "means n"]
) -> Int[Array, "*shape"]:
    """Draws photon counts by a binary search in tables.

    Args:
        key: Random key.
        which: The mean of each draw, as a row of the table.
        table: As `count_table` returns it.
    """
    bits = jax.random.bits(key, which.shape, jnp.uint32)
    flat, width = jnp.asarray(table).ravel(), table.shape[1]
    counts, step = jnp.zeros(which.shape, jnp.int32), (width + 1) // 2
    while step:
        further = flat[which * width + counts + step - 1] <= bits
        counts = jnp.where(further, counts + step, counts)
        step //= 2
    return jnp.minimum(counts, width - 1)
