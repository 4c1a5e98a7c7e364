"""A mean-field Gaussian approximation over a pytree of parameters, as NumPyro model and guide.

The guide is an independent Gaussian per parameter, the family of NumPyro's ``AutoNormal``, written
out so that its numbers are a plain pytree: ``{"mean": params, "raw": {path: array}}`` with standard
deviation ``softplus(raw)``, which any optax optimizer takes and a checkpoint holds by path. A
parameter without a prior has a mean only, which is then its trained value.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import PRNGKeyArray

from jaxeff.bayes.density import Scales, random_part, with_random
from jaxeff.bayes.prior import named_leaves
from jaxeff.moments import Gaussian

Variational = dict[str, Any]

OBSERVED = "jaxeff.observed"


def start(params: Any, scales: Scales, init_scale: float) -> Variational:
    """The approximation centred at given parameters, with one small standard deviation for all."""
    # Arrays of their own and never weakly typed, so that training compiles once.
    means = jax.tree.map(lambda p: jnp.array(p, jnp.result_type(p)), params)
    raw = float(np.log(np.expm1(init_scale)))
    random = random_part(means, scales)
    return {"mean": means, "raw": {path: jnp.full_like(p, raw) for path, p in random.items()}}


@jax.jit
def to_gaussians(variational: Variational) -> Any:
    """The approximation as a pytree of `Gaussian` with the structure of the parameters."""
    means, raws = named_leaves(variational["mean"]), variational["raw"]
    gaussians = {
        path: Gaussian(means[path], jax.nn.softplus(raw) ** 2) for path, raw in raws.items()
    }
    return with_random(variational["mean"], gaussians)


def site_values(key: PRNGKeyArray, variational: Variational) -> dict[str, jax.Array]:
    """One draw of the guide: its NumPyro parameters and sample sites by name.

    The noise of all sites is one vector: a random draw per site would make the training step
    several times slower to compile.

    Args:
        key: Random key.
        variational: The approximation.

    Returns:
        ``<path>:loc`` and ``<path>:scale`` for each random parameter and a draw at ``<path>``; the
        others' values at ``<path>``.
    """
    means, raws = named_leaves(variational["mean"]), variational["raw"]
    sizes = [raw.size for raw in raws.values()]
    noise = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    values = dict(means)
    for (path, raw), part in zip(raws.items(), noise, strict=True):
        loc, scale = means[path], jax.nn.softplus(raw)
        values[f"{path}:loc"], values[f"{path}:scale"] = loc, scale
        values[path] = loc + scale * part.reshape(loc.shape).astype(loc.dtype)
    return values


def model_and_guide(
    f: Callable[..., Any],
    params: Any,
    scales: Scales,
    likelihood: Callable[[Any], dist.Distribution],
) -> tuple[Callable[..., None], Callable[..., None]]:
    """NumPyro model and guide of a Bayesian network.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        params: Pytree of parameters: their structure, shapes and dtypes.
        scales: Prior standard deviation by parameter path, None where there is no prior.
        likelihood: Distribution of the targets, from the outputs of `f`.

    Returns:
        Both take ``(inputs, targets)``. Every random parameter is a sample site named by its path,
        the others are NumPyro parameters, the targets are the site `OBSERVED`. Substitute
        `site_values` into them.
    """
    leaves = named_leaves(params)
    treedef = jax.tree.structure(params)

    def model(inputs: tuple[Any, ...], targets: Any) -> None:
        sampled = []
        for path, leaf in leaves.items():
            of_all = scales[path]
            if of_all is None:
                sampled.append(numpyro.param(path, leaf))
                continue
            scale = jnp.full(jnp.shape(leaf), of_all, jnp.result_type(leaf))
            prior = dist.Normal(jnp.zeros_like(scale), scale).to_event(scale.ndim)
            sampled.append(numpyro.sample(path, prior))
        outputs = f(jax.tree.unflatten(treedef, sampled), *inputs)
        of_targets = likelihood(outputs)
        of_batch = of_targets.to_event(len(of_targets.batch_shape))
        numpyro.sample(OBSERVED, of_batch, obs=targets)

    def guide(inputs: tuple[Any, ...], targets: Any) -> None:
        for path, leaf in random_part(params, scales).items():
            loc = numpyro.param(f"{path}:loc", leaf)
            scale = numpyro.param(f"{path}:scale", jnp.ones_like(leaf))
            numpyro.sample(path, dist.Normal(loc, scale).to_event(jnp.ndim(leaf)))

    return model, guide
