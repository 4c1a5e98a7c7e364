"""`photon_counts`: draws from the photon-count distribution of chaotic light.

A Poisson count whose rate is Gamma(M, n / M) distributed: the M-fold Bose-Einstein distribution,
whose density and moments `BoseEinstein` has. This file needs JAX alone.

```python
import jax
import jax.numpy as jnp

from jaxeff.photonics import photon_counts

mean, modes = 20.0, 5.0
counts = photon_counts(jax.random.key(0), jnp.array(mean), modes, (20_000,))
assert abs(counts.mean() / mean - 1) < 0.05
assert abs(counts.var() / (mean + mean**2 / modes) - 1) < 0.05
```
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.core import check_broadcasts, check_number, static_integers, validate

MODES = 10.64  # measurement time over coherence time of the published set-up
TINY = float(jnp.finfo(jnp.float32).tiny)


@validate(shape=static_integers())
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
    check_broadcasts("photon_counts: mean", mean, tuple(shape))
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
