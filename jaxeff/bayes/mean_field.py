"""A mean-field Gaussian approximation over a pytree of parameters, as NumPyro model and guide.

The guide is an independent Gaussian per parameter, the family of NumPyro's ``AutoNormal``, written
out so that its numbers are a plain pytree: ``{"mean": params, "raw": params}`` with standard
deviation ``softplus(raw)``, which any optax optimizer takes and a checkpoint holds by path.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import PRNGKeyArray

from jaxeff.bayes.prior import named_leaves
from jaxeff.moments import Gaussian

Variational = dict[str, Any]

OBSERVED = "jaxeff.observed"


def start(params: Any, init_scale: float) -> Variational:
    """The approximation centred at given parameters, with one small standard deviation for all."""
    # Arrays of their own and never weakly typed, so that training compiles once.
    means = jax.tree.map(lambda p: jnp.array(p, jnp.result_type(p)), params)
    raw = float(np.log(np.expm1(init_scale)))
    return {"mean": means, "raw": jax.tree.map(lambda p: jnp.full_like(p, raw), means)}


@jax.jit
def to_gaussians(variational: Variational) -> Any:
    """The approximation as a pytree of `Gaussian` with the structure of the parameters."""
    return jax.tree.map(
        lambda mean, raw: Gaussian(mean, jax.nn.softplus(raw) ** 2),
        variational["mean"],
        variational["raw"],
    )


def site_values(key: PRNGKeyArray, variational: Variational) -> dict[str, jax.Array]:
    """One draw of the guide: its NumPyro parameters and sample sites by name.

    The noise of all sites is one vector: a random draw per site would make the training step
    several times slower to compile.

    Args:
        key: Random key.
        variational: The approximation.

    Returns:
        ``<path>:loc`` and ``<path>:scale`` for each parameter array, and a draw at ``<path>``.
    """
    means, raws = named_leaves(variational["mean"]), named_leaves(variational["raw"])
    sizes = [mean.size for mean in means.values()]
    noise = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    values = {}
    for (path, loc), part in zip(means.items(), noise, strict=True):
        scale = jax.nn.softplus(raws[path])
        values[f"{path}:loc"], values[f"{path}:scale"] = loc, scale
        values[path] = loc + scale * part.reshape(loc.shape).astype(loc.dtype)
    return values


def model_and_guide(
    f: Callable[..., Any],
    params: Any,
    scales: Mapping[str, float],
    likelihood: Callable[[Any], dist.Distribution],
) -> tuple[Callable[..., None], Callable[..., None]]:
    """NumPyro model and guide of a Bayesian network.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        params: Pytree of parameters: their structure, shapes and dtypes.
        scales: Prior standard deviation by parameter path.
        likelihood: Distribution of the targets, from the outputs of `f`.

    Returns:
        Both take ``(inputs, targets)``. Every parameter array is a sample site named by its path,
        the targets are the site `OBSERVED`. Substitute `site_values` into them.
    """
    leaves = named_leaves(params)
    treedef = jax.tree.structure(params)

    def model(inputs: tuple[Any, ...], targets: Any) -> None:
        sampled = []
        for path, leaf in leaves.items():
            scale = jnp.full(jnp.shape(leaf), scales[path], jnp.result_type(leaf))
            prior = dist.Normal(jnp.zeros_like(scale), scale).to_event(scale.ndim)
            sampled.append(numpyro.sample(path, prior))
        outputs = f(jax.tree.unflatten(treedef, sampled), *inputs)
        of_targets = likelihood(outputs)
        of_batch = of_targets.to_event(len(of_targets.batch_shape))
        numpyro.sample(OBSERVED, of_batch, obs=targets)

    def guide(inputs: tuple[Any, ...], targets: Any) -> None:
        for path, leaf in leaves.items():
            loc = numpyro.param(f"{path}:loc", leaf)
            scale = numpyro.param(f"{path}:scale", jnp.ones_like(leaf))
            numpyro.sample(path, dist.Normal(loc, scale).to_event(jnp.ndim(leaf)))

    return model, guide
