"""Guides with correlations: one distribution over all random parameters as one vector.

Its numbers are ``{"mean": params, "raw": [size], ...}``: where the distribution is centred, its
scales ``softplus(raw)``, and what else the family has. The vector holds the random parameters in
the order of their paths.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.posteriors import (
    Likelihood,
    Random,
    Scales,
    named_leaves,
    parameter_table,
    with_random,
)
from jaxeff.bayes.variational._mean_field import inverse_softplus, own_arrays
from jaxeff.core import Setting, Table, shown_as_table
from jaxeff.moment_propagation import Gaussian

Vector = Float[Array, "size"]

MOMENT_DRAWS = 2000
"""Draws to estimate moments with where there is no closed form: standard deviations to 1.6 %."""


class Family(Protocol):
    """A family of distributions over a vector."""

    def shape(self, key: PRNGKeyArray, size: int, dtype: Any) -> dict[str, Any]:
        """Makes the family's own numbers to start with: about those of independent entries."""

    def distribution(self, mean: Vector, std: Vector, shape: dict[str, Any]) -> dist.Distribution:
        """Makes the distribution of the vector; at a start, of about the given moments."""


@dataclass(frozen=True)
class CorrelatedGuide(Setting):
    """Base of guides over a vector; a subclass is a `Family`."""

    def start(self: Any, key: PRNGKeyArray, params: Any, stds: Random) -> dict[str, Any]:
        """Implements `Guide.start`."""
        std, _ = ravel_pytree(stds)
        shape = self.shape(key, std.size, std.dtype)
        return {"mean": own_arrays(params), "raw": inverse_softplus(std), **shape}

    def draw(
        self: Any, key: PRNGKeyArray, numbers: dict[str, Any], scales: Scales
    ) -> tuple[Any, Float[Array, ""]]:
        """Implements `Guide.draw`; in closed form where the family has an entropy."""
        posterior = self.posterior(numbers, scales)
        random = posterior.random_of_mean()
        scale = {
            path: np.full(leaf.shape, scales[path], leaf.dtype) for path, leaf in random.items()
        }
        # Flattened like the vector, so that every entry meets its own scale.
        prior = dist.Normal(0.0, ravel_pytree(scale)[0])
        of_vector = posterior.distribution()
        vector, intermediates = of_vector.sample_with_intermediates(key)
        # Without a closed form it is estimated at this draw, without bias.
        divergence = _divergence(of_vector, prior, vector, intermediates)
        return posterior.params_at(vector), divergence

    def posterior(self: Any, numbers: dict[str, Any], scales: Scales) -> "CorrelatedPosterior":
        """Implements `Guide.posterior`."""
        paths = tuple(path for path, scale in scales.items() if scale is not None)
        return CorrelatedPosterior(numbers, self, paths)


def _divergence(
    of_vector: dist.Distribution, prior: dist.Normal, vector: Vector, intermediates: list[Any]
) -> Float[Array, ""]:
    if isinstance(of_vector, dist.TransformedDistribution):
        # A flow has no closed entropy: one-sample estimate, with the intermediates of the
        # same draw so that nothing is inverted.
        log_ratio: Any = of_vector.log_prob(vector, intermediates) - prior.log_prob(vector).sum()
        return log_ratio
    # The prior's log-density is quadratic: its mean at the mean, and the variances' share.
    spread = of_vector.variance / (2 * prior.scale**2)
    return (spread - prior.log_prob(of_vector.mean)).sum() - of_vector.entropy()


@shown_as_table
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class CorrelatedPosterior:
    """A posterior over all random parameters together.

    Attributes:
        numbers: The guide's, trained.
        guide: The guide.
        paths: Paths of the random parameters.
        likelihood: Meaning of the outputs of the function, as given to `svi`; None if unknown.
    """

    numbers: dict[str, Any]
    guide: Any = field(metadata={"static": True})
    paths: tuple[str, ...] = field(metadata={"static": True})
    likelihood: Likelihood | None = field(default=None, metadata={"static": True})

    def _table(self) -> Table:
        shapes = {path: np.shape(leaf) for path, leaf in self.random_of_mean().items()}
        return parameter_table(f"{self.guide!r}", self.numbers["mean"], shapes)

    def draws(self, key: PRNGKeyArray, n: int) -> tuple[Any, Any]:
        """Implements `jaxeff.bayes.Posterior.draws`."""
        of_vector = self.distribution()
        return jax.random.split(key, n), lambda k: self.params_at(of_vector.sample(k))

    def to_gaussians(self, *, diagonal: bool = False) -> Any:
        """Computes the mean and variance of every parameter; correlations are lost.

        They are exact for Gaussians. A flow's are those of 2,000 draws, always the same ones.
        """
        of_vector = self.distribution()
        if isinstance(of_vector, dist.TransformedDistribution):
            # Always the same key: moments belong to the posterior, not to a call.
            keys = jax.random.split(jax.random.key(0), MOMENT_DRAWS)
            # In batches: 2,000 vectors of all parameters at once may not fit.
            drawn = jax.lax.map(of_vector.sample, keys, batch_size=100)
            mean, var = drawn.mean(0), drawn.var(0)
        else:
            mean, var = of_vector.mean, of_vector.variance
        _, unravel = ravel_pytree(self.random_of_mean())
        means, variances = unravel(mean), unravel(var)
        gaussians = {path: Gaussian(means[path], variances[path]) for path in self.paths}
        return with_random(self.numbers["mean"], gaussians)

    def distribution(self) -> dist.Distribution:
        """Makes the distribution of the random parameters as one vector, ordered by path."""
        rest = dict(self.numbers)
        rest.pop("mean")
        mean, _ = ravel_pytree(self.random_of_mean())
        return self.guide.distribution(mean, jax.nn.softplus(rest.pop("raw")), rest)

    def random_of_mean(self) -> Random:
        """Returns the centres of the random parameters, by path."""
        leaves = named_leaves(self.numbers["mean"])
        return {path: leaves[path] for path in self.paths}

    def params_at(self, vector: Vector) -> Any:
        """Makes all parameters, the random ones from a vector."""
        _, unravel = ravel_pytree(self.random_of_mean())
        return with_random(self.numbers["mean"], unravel(vector))
