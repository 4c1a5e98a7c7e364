"""`BoseEinstein`: the photon-count distribution of chaotic light, as a distrax distribution.

Counting photons of amplified spontaneous emission over M coherence times gives an M-fold
Bose-Einstein distribution: a negative binomial with r = M and success probability M / (M + n), or,
equally, a Poisson count whose rate is Gamma(M, n / M) distributed. Its variance n + n²/M is shot
noise plus excess noise: mean and variance can't be chosen apart.

distrax loads TensorFlow Probability, so this file is read only where `BoseEinstein` is asked for.

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

import jax.numpy as jnp
from jax.scipy.special import gammaln, xlog1py, xlogy
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.core import check_number
from jaxeff.photonics._light import MODES, photon_counts

with warnings.catch_warnings():  # the TensorFlow Probability behind it reads a name JAX deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        import distrax
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "BoseEinstein is a distrax distribution, and distrax isn't installed: "
            "pip install 'jaxeff[distrax]'. Everything else in jaxeff.photonics works without.",
            name=error.name,
        ) from error


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

        Raises:
            ValueError: A mean is negative or NaN, or `modes` isn't positive, where it is concrete.
        """
        check_number("BoseEinstein: mean", mean, 0)
        check_number("BoseEinstein: modes", modes, above=0)
        super().__init__()
        common = jnp.result_type(mean, modes)
        # At least float32: half precision has too few digits for the log-gammas of large counts.
        wide = jnp.issubdtype(common, jnp.floating) and jnp.finfo(common).bits > 32
        dtype = common if wide else jnp.float32
        shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(modes))
        self._mean = jnp.broadcast_to(jnp.asarray(mean, dtype), shape)
        self._modes = jnp.broadcast_to(jnp.asarray(modes, dtype), shape)

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Counts are scalars: the empty shape."""
        return ()

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The broadcast shape of mean and modes."""
        return self._mean.shape

    @property
    def modes(self) -> Float[Array, "..."]:
        """The degeneracy factor M, in the batch shape."""
        return self._modes

    def _sample_n(self, key: PRNGKeyArray, n: int) -> Int[Array, "n ..."]:
        return photon_counts(key, self.mean()[None], self.modes[None], (n, *self.batch_shape))

    def log_prob(self, value: Int[Array, "..."]) -> Float[Array, "..."]:
        """Computes the log-probability of a photon count, in nats; -inf of what is no count."""
        k = jnp.asarray(value, self._mean.dtype)
        k, mean, modes = jnp.broadcast_arrays(k, self._mean, self._modes)
        is_count = (k >= 0) & (k == jnp.floor(k))
        # A stand-in inside the domain, so that no NaN comes through the branch that isn't taken.
        k = jnp.where(is_count, k, 0)
        # M log(M/(M+n)) + k log(n/(M+n)) in n/M, accurate where n is much smaller than M.
        ratio = mean / modes
        log_binomial = gammaln(k + modes) - gammaln(modes) - gammaln(k + 1)
        log_power = xlogy(k, jnp.where(k == 0, 1, ratio))  # xlogy(0, 0) is zero, its gradient isn't
        log_p = log_binomial - xlog1py(modes + k, ratio) + log_power
        return jnp.where(is_count, log_p, -jnp.inf)

    def mean(self) -> Float[Array, "..."]:
        """Computes the mean photon number n."""
        return self._mean

    def variance(self) -> Float[Array, "..."]:
        """Computes the variance n + n²/M: shot noise and excess noise."""
        return self.mean() + self.mean() ** 2 / self.modes

    def stddev(self) -> Float[Array, "..."]:
        """Computes the standard deviation of the photon number."""
        return jnp.sqrt(self.variance())

    def skewness(self) -> Float[Array, "..."]:
        """Computes the skewness (M + 2n) / √(n M (M + n)): 2/√M for large means, infinite at 0."""
        n, m = self.mean(), self.modes
        return (m + 2 * n) / jnp.sqrt(n * m * (m + n))

    def mode(self) -> Float[Array, "..."]:
        """Returns the most likely photon number: zero up to one mode, else floor(n (M - 1) / M)."""
        peak = jnp.floor(self.mean() * (self.modes - 1) / self.modes)
        return jnp.where(self.modes > 1, peak, 0.0)

    def __getitem__(self, index: Any) -> "BoseEinstein":
        """Returns the distributions at `index` of the batch."""
        return BoseEinstein(self.mean()[index], self.modes[index])
