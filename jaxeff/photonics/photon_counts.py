"""`photon_counts`: draws from the photon-count distribution of chaotic light.

A Poisson count whose rate is Gamma(M, n / M) distributed: the M-fold Bose-Einstein distribution,
whose density and moments `BoseEinstein` has. This file needs JAX alone.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

MODES = 10.64  # measurement time over coherence time of the published set-up


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
    """
    gamma_key, poisson_key = jax.random.split(key)
    modes = jnp.broadcast_to(jnp.asarray(modes, mean.dtype), shape)
    intensity = jax.random.gamma(gamma_key, modes, shape, mean.dtype) / modes
    return jax.random.poisson(poisson_key, mean * intensity, shape)
