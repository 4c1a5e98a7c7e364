"""Gaussian guides with correlations: low rank and full rank.

The families of NumPyro's ``AutoLowRankMultivariateNormal`` and ``AutoMultivariateNormal``.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.posteriors import named_leaves
from jaxeff.bayes.variational._correlated import CorrelatedGuide, CorrelatedPosterior, Vector
from jaxeff.bayes.variational._mean_field import inverse_softplus
from jaxeff.core import Count

LARGEST = 2**30
"""Bytes of the largest matrix that a guide makes: 16,384 float32 parameters, full rank."""


@dataclass(frozen=True)
class LowRank(CorrelatedGuide):
    """A Gaussian with covariance ``S (F F' + I) S``: ``S`` diagonal, ``F`` of a few columns.

    Attributes:
        rank: Columns of ``F``; as many as there are parameters if those are fewer. A step costs
            about ``rank**2`` operations per parameter.
    """

    rank: Annotated[int, Count()] = 10

    def shape(self, key: PRNGKeyArray, size: int, dtype: Any) -> dict[str, Any]:
        """Implements `Family.shape`."""
        rank = min(self.rank, size)
        # Small, so that the variances are those asked for up to 1 %; at zero itself the gradient
        # to `factor` would be noise.
        return {"factor": 0.1 / rank**0.5 * jax.random.normal(key, (size, rank), dtype)}

    def distribution(self, mean: Vector, std: Vector, shape: dict[str, Any]) -> dist.Distribution:
        """Implements `Family.distribution`."""
        # Rows of F and the identity scale together: S (F F' + I) S.
        factor = shape["factor"] * std[:, None]
        return dist.LowRankMultivariateNormal(mean, factor, std**2)


def low_rank_posterior(
    mean: Any, std: Vector, factor: Float[Array, "size rank"]
) -> CorrelatedPosterior:
    """Makes a Gaussian of all parameters of covariance ``factor factor' + diag(std**2)``.

    Args:
        mean: The mean, a pytree of parameters.
        std: Standard deviations of the independent part, in the order of the sorted paths.
        factor: The dependent part.
    """
    numbers = {"mean": mean, "raw": inverse_softplus(std), "factor": factor / std[:, None]}
    return CorrelatedPosterior(numbers, LowRank(factor.shape[1]), tuple(named_leaves(mean)))


@dataclass(frozen=True)
class FullRank(CorrelatedGuide):
    """A Gaussian with any covariance, by its Cholesky factor.

    Memory and time grow with the square of the number of random parameters.
    """

    def shape(self, key: PRNGKeyArray, size: int, dtype: Any) -> dict[str, Any]:
        """Implements `Family.shape`."""
        check_size("a full-rank guide", size, 1, size**2 * dtype.itemsize)
        return {"lower": jnp.zeros((size, size), dtype)}

    def distribution(self, mean: Vector, std: Vector, shape: dict[str, Any]) -> dist.Distribution:
        """Implements `Family.distribution`."""
        # Row by row `std` times a unit triangle: whatever is learnt, it is a Cholesky factor.
        correlated = jnp.tril(shape["lower"], -1) + jnp.eye(len(std), dtype=std.dtype)
        return dist.MultivariateNormal(mean, scale_tril=std[:, None] * correlated)


def check_size(name: str, size: int, matrices: int, number_of_bytes: int) -> None:
    """Refuses a guide that wouldn't fit into memory.

    Raises:
        ValueError: It takes more than `LARGEST` bytes.
    """
    if number_of_bytes > LARGEST:
        what = "a matrix" if matrices == 1 else f"{matrices} matrices"
        raise ValueError(
            f"{name} of {size:,} random parameters is {what} of {number_of_bytes / 1e9:.1f} GB, "
            "and training holds about four times that: use guide='low_rank', or make fewer "
            'parameters random by a prior of None, such as prior={"*/kernel": None}'
        )
