"""`BoseEinstein`: the photon-count distribution of chaotic light, as a distrax distribution.

Counting photons of amplified spontaneous emission over M coherence times gives an M-fold
Bose-Einstein distribution: a negative binomial with r = M and success probability M / (M + n), or,
equally, a Poisson count whose rate is Gamma(M, n / M) distributed. Its variance n + n²/M is shot
noise plus excess noise: mean and variance can't be chosen apart.

Sharp edges:
    Samples are integers; means above 2³¹ overflow them. They have no gradient; `log_prob` has.
    M needn't be whole. The skewness tends to 2/√M for large means, so a Gaussian of the same mean
    and variance is visibly different in shape at the measured M of 10.64.

References:
    Brückerhoff-Plückelmann et al., "Probabilistic photonic computing with chaotic light",
    Nature Communications 15, 10445 (2024). Goodman, "Statistical Optics".
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, xlog1py, xlogy
from jaxtyping import Array, Float, Int, PRNGKeyArray

with warnings.catch_warnings():  # the TensorFlow Probability behind it reads a name JAX deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    import distrax

MODES = 10.64  # measurement time over coherence time of the published set-up


class BoseEinstein(distrax.Distribution):
    """Photon counts of chaotic light with a given mean over a number of modes.

    A mean of zero is the distribution that is always zero.
    """

    def __init__(
        self, mean: Float[Array, "..."] | float, modes: Float[Array, "..."] | float = MODES
    ):
        """Makes the distribution.

        Args:
            mean: Mean photon number, never negative.
            modes: Degeneracy factor M, positive: measurement time over coherence time. Broadcasts
                against `mean`. One mode is thermal light, infinitely many are Poisson light.
        """
        super().__init__()
        dtype = jnp.promote_types(jnp.result_type(mean, modes), jnp.float32)
        self._mean = jnp.asarray(mean, dtype)
        self._modes = jnp.asarray(modes, dtype)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Counts are scalars: the empty shape."""
        return ()

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The broadcast shape of mean and modes."""
        return jnp.broadcast_shapes(self._mean.shape, self._modes.shape)

    @property
    def modes(self) -> Float[Array, "..."]:
        """The degeneracy factor M, in the batch shape."""
        return jnp.broadcast_to(self._modes, self.batch_shape)

    def _sample_n(self, key: PRNGKeyArray, n: int) -> Int[Array, "n ..."]:
        gamma_key, poisson_key = jax.random.split(key)
        shape = (n, *self.batch_shape)
        intensity = jax.random.gamma(gamma_key, self.modes, shape, self._mean.dtype) / self.modes
        return jax.random.poisson(poisson_key, self._mean * intensity, shape)

    def log_prob(self, value: Int[Array, "..."]) -> Float[Array, "..."]:
        """Log-probability of a photon count; minus infinity below zero and between integers."""
        k = jnp.asarray(value, self._mean.dtype)
        counts = (k >= 0) & (k == jnp.floor(k))
        k = jnp.where(counts, k, 0)
        # M log(M/(M+n)) + k log(n/(M+n)) in n/M, accurate where n is much smaller than M.
        ratio = self._mean / self._modes
        binomial = gammaln(k + self._modes) - gammaln(self._modes) - gammaln(k + 1)
        some = xlogy(k, jnp.where(k == 0, 1, ratio))  # xlogy(0, 0) is zero, its gradient is not
        log_p = binomial - xlog1py(self._modes + k, ratio) + some
        return jnp.where(counts, log_p, -jnp.inf)

    def mean(self) -> Float[Array, "..."]:
        """Mean photon number n."""
        return jnp.broadcast_to(self._mean, self.batch_shape)

    def variance(self) -> Float[Array, "..."]:
        """Variance n + n²/M: shot noise and excess noise."""
        return self.mean() + self.mean() ** 2 / self.modes

    def stddev(self) -> Float[Array, "..."]:
        """Standard deviation of the photon number."""
        return jnp.sqrt(self.variance())

    def skewness(self) -> Float[Array, "..."]:
        """Skewness (M + 2n) / √(n M (M + n)); 2/√M for large means, infinite at zero."""
        n, m = self.mean(), self.modes
        return (m + 2 * n) / jnp.sqrt(n * m * (m + n))

    def mode(self) -> Float[Array, "..."]:
        """The most likely photon number: zero up to one mode, else floor(n (M - 1) / M)."""
        peak = jnp.floor(self.mean() * (self.modes - 1) / self.modes)
        return jnp.where(self.modes > 1, peak, 0.0)

    def __getitem__(self, index: Any) -> "BoseEinstein":
        """The distributions at `index` of the batch."""
        return BoseEinstein(self.mean()[index], self.modes[index])
