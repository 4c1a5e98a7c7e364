"""The joint density of parameters and data, which every sampler moves on.

```python
from jaxeff.bayes import prior_scales
from jaxeff.bayes.posteriors import log_joint, random_part
from jaxeff.nn import small_classifier

f, params, data = small_classifier()
scales = prior_scales("fan_in", params)
log_density = log_joint(f, params, scales, "categorical")
log_density(random_part(params, scales), data)
```

Only the parameters with a prior are arguments; the others (prior None) keep the values given:
partial Bayes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.posteriors._likelihood import Likelihood, resolve_likelihood
from jaxeff.bayes.posteriors._prior import named_leaves

Scales = Mapping[str, float | None]
Random = dict[str, Array]
"""The random parameters by path, such as ``{"fc1/kernel": ...}``: where a sampler is."""


def random_part(params: Any, scales: Scales) -> Random:
    """Selects the parameters that have a prior.

    Args:
        params: Pytree of parameters.
        scales: Prior standard deviations by path (`prior_scales`), None for a fixed parameter.

    Returns:
        Arrays by path. They are never weakly typed, so that a sampler compiles once.
    """
    leaves = named_leaves(params)
    return {
        path: jnp.asarray(leaf, jnp.result_type(leaf))
        for path, leaf in leaves.items()
        if scales[path] is not None
    }


def with_random(params: Any, random: Mapping[str, Any]) -> Any:
    """Replaces random parameters by others.

    Args:
        params: Pytree of parameters; those that `random` doesn't name stay.
        random: Replacements by path; anything that may be a leaf.

    Returns:
        A pytree of the same structure.
    """
    paths = named_leaves(params)
    leaves = [random.get(path, leaf) for path, leaf in paths.items()]
    return jax.tree.unflatten(jax.tree.structure(params), leaves)


def log_prior(random: Random, scales: Scales) -> Float[Array, ""]:
    """Computes the log-density of the prior, independent zero-mean Gaussians, in nats."""
    terms = [dist.Normal(0.0, scales[path]).log_prob(leaf).sum() for path, leaf in random.items()]
    return sum(terms, jnp.zeros(()))


def draw_prior(key: PRNGKeyArray, params: Any, scales: Scales) -> Random:
    """Draws the random parameters from their prior.

    Args:
        key: Random key.
        params: Pytree of parameters: structure, shapes and dtypes.
        scales: Prior standard deviations by path.

    Returns:
        Arrays by path.
    """
    random = random_part(params, scales)
    keys = jax.random.split(key, max(len(random), 1))
    return {
        path: dist.Normal(0.0, scales[path]).sample(k, leaf.shape).astype(leaf.dtype)
        for k, (path, leaf) in zip(keys, random.items(), strict=False)
    }


def log_joint(
    f: Callable[..., Any], params: Any, scales: Scales, likelihood: Likelihood
) -> Callable[..., Float[Array, ""]]:
    """Makes the joint density of parameters and targets given the inputs.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        params: Pytree of parameters; those without a prior keep these values.
        scales: Prior standard deviations by path.
        likelihood: Likelihood, as `resolve_likelihood` takes it.

    Returns:
        ``log_density(random, data, weight=1)``, in nats: the log-prior plus ``weight`` times the
        log-likelihood of ``data``, ``(*inputs, targets)``. For a mini-batch the weight is the size
        of the data set over that of the batch. It differs from the log-posterior by a constant.
    """
    distribution = resolve_likelihood(likelihood)

    def log_density(random: Random, data: tuple[Any, ...], weight: Any = 1.0) -> Float[Array, ""]:
        *inputs, targets = data
        # Other parameters are constants here: samplers neither move nor differentiate them.
        outputs = f(with_random(params, random), *inputs)
        log_likelihood = distribution(outputs).log_prob(targets).sum()
        return log_prior(random, scales) + weight * log_likelihood

    return log_density
