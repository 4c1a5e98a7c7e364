"""Mean field: an independent Gaussian per parameter, the family of NumPyro's ``AutoNormal``.

Its numbers are ``{"mean": params, "raw": {path: array}}`` with standard deviation
``softplus(raw)``. A parameter without a prior has a mean only, which is then its trained value.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.posteriors import Random, Scales, named_leaves, with_random
from jaxeff.moment_propagation import Gaussian


def inverse_softplus(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Solves ``softplus(y) = x`` for y, exact for small x, too."""
    # log(e^x - 1) = x + log(1 - e^-x), which neither overflows nor cancels.
    return x + jnp.log(-jnp.expm1(-x))


def own_arrays(params: Any) -> Any:
    """Copies parameters without weak types, so that training compiles once."""
    return jax.tree.map(lambda p: jnp.array(p, jnp.result_type(p)), params)


@dataclass(frozen=True)
class MeanField:
    """Independent Gaussians; the posterior is a pytree of `jaxeff.Gaussian`."""

    def start(self, key: PRNGKeyArray, params: Any, stds: Random) -> dict[str, Any]:
        """Implements `Guide.start`; nothing about it is random."""
        raw = {path: inverse_softplus(std) for path, std in stds.items()}
        return {"mean": own_arrays(params), "raw": raw}

    def draw(
        self, key: PRNGKeyArray, numbers: dict[str, Any], scales: Scales
    ) -> tuple[Any, Float[Array, ""]]:
        """Implements `Guide.draw`; the divergence is in closed form.

        The noise of all parameters is one vector: a random draw for each would make the training
        step several times slower to compile.
        """
        means, raws = named_leaves(numbers["mean"]), numbers["raw"]
        sizes = [raw.size for raw in raws.values()]
        noise = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
        random, divergence = {}, jnp.zeros(())
        for (path, raw), part in zip(raws.items(), noise, strict=True):
            mean, std = means[path], jax.nn.softplus(raw)
            # Reparameterization (Kingma and Welling, arXiv:1312.6114): the draw is differentiable.
            random[path] = mean + std * part.reshape(mean.shape).astype(mean.dtype)
            prior = dist.Normal(0.0, scales[path])
            divergence += dist.kl_divergence(dist.Normal(mean, std), prior).sum()
        return with_random(numbers["mean"], random), divergence

    def posterior(self, numbers: dict[str, Any], scales: Scales) -> Any:
        """Implements `Guide.posterior`."""
        return _gaussians(numbers)


@jax.jit
def _gaussians(numbers: dict[str, Any]) -> Any:
    means, raws = named_leaves(numbers["mean"]), numbers["raw"]
    gaussians = {
        path: Gaussian(means[path], jax.nn.softplus(raw) ** 2) for path, raw in raws.items()
    }
    return with_random(numbers["mean"], gaussians)
