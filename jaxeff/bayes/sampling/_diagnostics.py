"""Have the chains converged? Split R-hat and bulk effective sample size (Vehtari et al. 2021).

For a network the question is about its *predictions*: hidden units may be exchanged, so chains
that agree on every prediction may disagree on every weight.

```python
import jax
import jax.numpy as jnp

from jaxeff.bayes import Draws, mixing, parameter_mixing, prediction_mixing

values = jax.random.normal(jax.random.key(0), (4, 100, 2))           # [chains, draws, quantities]
assert mixing(values).max_rhat < 1.05
apart = values + jnp.array([0.0, 0.0, 3.0, 3.0])[:, None, None]      # two chains are elsewhere
assert mixing(apart).max_rhat > 1.5

# Chains that differ by the sign of a weight agree on what the function predicts.
w = (5 + values[..., 0]) * jnp.array([1.0, 1.0, -1.0, -1.0])[:, None]
posterior = Draws({"w": w}, {"w": jnp.zeros(())}, likelihood="gaussian")

def even(params, x):                                                 # mean and log-variance
    return jnp.stack([params["w"] ** 2 * x, jnp.zeros_like(x)], -1)

assert parameter_mixing(posterior)["w"].max_rhat > 1.5
assert prediction_mixing(even, posterior, jnp.array([1.0, 2.0])).max_rhat < 1.05
```
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from numpyro.diagnostics import effective_sample_size, gelman_rubin
from numpyro.distributions import CategoricalLogits, CategoricalProbs, Distribution
from scipy.special import ndtri
from scipy.stats import rankdata

from jaxeff.bayes.posteriors import (
    Draws,
    Likelihood,
    predict,
    require_likelihood,
    resolve_likelihood,
)
from jaxeff.core import input_batch, instance_of, real_array, validate

RHAT = 1.05
"""Above it, chains are said not to have converged."""
SETTLED = 1e-3
"""Probabilities that vary by less, in standard deviations, are settled: no matter for R-hat."""
_COLUMNS = 512  # at a time, for memory's sake


class ConvergenceWarning(UserWarning):
    """Chains that have not converged: their draws don't represent the posterior."""


class Mixing(NamedTuple):
    """Convergence of several chains, for each of a number of quantities.

    Attributes:
        rhat: Split, rank-normalised R-hat; NaN for a quantity that never changes, infinite for
            one that isn't finite.
        ess: Bulk effective sample size, of all chains together; of no meaning where R-hat is NaN.
    """

    rhat: Float[np.ndarray, " *shape"]
    ess: Float[np.ndarray, " *shape"]

    @property
    def max_rhat(self) -> float:
        """The largest R-hat; 1 where nothing changes."""
        return float(np.nanmax(self.rhat, initial=1.0))

    @property
    def min_ess(self) -> float:
        """The smallest effective sample size of what changes."""
        changing = self.ess[~np.isnan(self.rhat)]
        return float(changing.min()) if changing.size else float("nan")


@validate(values=real_array(nan=True))
def mixing(values: Float[Any, "chains draws *shape"]) -> Mixing:
    """Computes R-hat and effective sample size of any quantity.

    Args:
        values: One value for each draw of each chain; at least four draws.

    Returns:
        An entry for each component.
    """
    chains, draws, *shape = np.shape(values)
    if draws < 4:
        raise ValueError(f"R-hat needs at least 4 draws of each chain, not {draws}")
    # Split chains: one that drifts disagrees with itself. An odd draw in the middle is left
    # out.
    half = draws // 2
    flat = np.reshape(values, (chains, draws, -1))
    parts = [
        _mixing(np.concatenate([some[:, :half], some[:, -half:]]))
        for some in np.array_split(flat, math.ceil(flat.shape[2] / _COLUMNS), axis=2)
    ]
    rhat, ess = np.concatenate(parts, axis=1).reshape(2, *shape)
    return Mixing(rhat, ess)


@validate(posterior=instance_of(Draws))
def parameter_mixing(posterior: Draws) -> dict[str, Mixing]:
    """Computes R-hat and effective sample size of each random parameter, by path."""
    return {path: mixing(values) for path, values in posterior.random.items()}


@validate(posterior=instance_of(Draws), inputs=input_batch)
def prediction_mixing(
    f: Callable[..., Any],
    posterior: Draws,
    *inputs: Any,
    likelihood: Likelihood | None = None,
    chunk: int = 1,
) -> Mixing:
    """Computes R-hat and effective sample size of predictions.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        posterior: The draws.
        *inputs: Inputs at which to predict.
        likelihood: Likelihood, as `resolve_likelihood` takes it: the prediction is the probability
            of each class, or else the mean of its distribution. By default that of the draws.
        chunk: Draws evaluated together.

    Returns:
        Of shape ``[inputs]``, ``[inputs, targets]`` or ``[inputs, classes]``. Probabilities that
        hardly vary (`SETTLED`) have an R-hat of NaN.
    """
    likelihood = require_likelihood("prediction_mixing", likelihood, posterior)
    outputs = predict(jax.random.key(0), f, posterior, *inputs, chunk=chunk)
    means = _means(outputs, likelihood=likelihood)
    means = np.reshape(means, (posterior.chains, posterior.draws_per_chain, *means.shape[1:]))
    # Of predictions: weights of exchanged hidden units differ where the functions agree.
    found = mixing(means)
    if likelihood == "categorical":
        # Probabilities of almost 0 or 1 differ between chains in digits that no decision
        # depends on.
        settled = means.std((0, 1)) < SETTLED
        return found._replace(rhat=np.where(settled, np.nan, found.rhat))
    return found


def _mixing(halves: np.ndarray) -> np.ndarray:
    """Computes R-hat and effective sample size of split chains ``[chains, draws, quantities]``."""
    total = halves.shape[0] * halves.shape[1]
    most = total * np.log10(total)
    with np.errstate(divide="ignore", invalid="ignore"):  # of what never changes
        # Rank-normalized R-hat (Vehtari et al., arXiv:1903.08008): of the values for
        # location, of their distances from the median for scale; the worse one counts.
        bulk = _normal_ranks(halves)
        tails = _normal_ranks(np.abs(halves - np.median(halves, (0, 1))))
        rhat = np.maximum(gelman_rubin(bulk), gelman_rubin(tails))
        ess = effective_sample_size(bulk)
    # Chains that jump from side to side would pass for more than they are (Stan's limit).
    ess = np.where((ess > 0) & (ess < most), ess, most)
    finite = np.isfinite(halves).all((0, 1))
    return np.stack([np.where(finite, rhat, np.inf), np.where(finite, ess, 0.0)])


def _normal_ranks(values: np.ndarray) -> np.ndarray:
    """Computes normal scores of the ranks among all draws."""
    ranks = rankdata(values.reshape(-1, values.shape[2]), axis=0)
    # Blom's offsets: ranks map into (0, 1) without its ends.
    return ndtri((ranks - 3 / 8) / (len(ranks) + 1 / 4)).reshape(values.shape)


@partial(jax.jit, static_argnames=("likelihood",))
def _means(outputs: Any, *, likelihood: Likelihood) -> Any:
    return jax.vmap(lambda one: _mean(resolve_likelihood(likelihood)(one)))(outputs)


def _mean(distribution: Distribution) -> Any:
    if isinstance(distribution, CategoricalLogits | CategoricalProbs):
        return distribution.probs
    return distribution.mean
