"""Starting points of chains."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.bayes.posteriors import (
    Posterior,
    Random,
    Scales,
    check_posterior,
    draw_prior,
    named_leaves,
    random_part,
    sample,
)
from jaxeff.moment_propagation import is_gaussian


def starting_points(
    key: PRNGKeyArray, params: Any, scales: Scales, chains: int, init: Any, jitter: float
) -> Random:
    """Chooses a start for each chain.

    Args:
        key: Random key.
        params: The model's parameters.
        scales: Prior standard deviations by path.
        chains: Number of starts.
        init: None for draws from the prior; a posterior for draws from it; parameters for one
            place that all chains start around; parameters with a leading axis of chains.
        jitter: Standard deviation of the starts around one place, in units of the prior's.

    Returns:
        The random parameters by path, with a leading axis of chains.

    Raises:
        ValueError: `init` is of another model, or of another number of chains.
    """
    if init is None:
        return _prior_draws(key, params, scales, chains)
    leaves = jax.tree.leaves(init, is_leaf=is_gaussian)
    if isinstance(init, Posterior) or any(is_gaussian(leaf) for leaf in leaves):
        check_posterior(init, params)
        return random_part(sample(key, init, chains), scales)
    if _leads_with_chains(init, params, chains):
        return random_part(init, scales)
    center = random_part(init, scales)
    # In the prior's units: parameters of all layers are spread on their own scales.
    noise = _prior_draws(key, params, scales, chains)
    return {path: center[path] + jitter * noise[path] for path in center}


@partial(jax.jit, static_argnames=("chains",))
def _prior_draws(key: PRNGKeyArray, params: Any, scales: Scales, chains: int) -> Random:
    return jax.vmap(lambda k: draw_prior(k, params, scales))(jax.random.split(key, chains))


def _leads_with_chains(init: Any, params: Any, chains: int) -> bool:
    given, expected = named_leaves(init), named_leaves(params)
    if given.keys() != expected.keys():
        path = next(iter(given.keys() ^ expected.keys()))
        raise ValueError(
            f"init and params differ in {path}: give a pytree of the model's parameters, one "
            "with a leading axis of chains, a posterior, or None to start at draws from the prior"
        )
    # All leaves agree on one of the two, so an axis as long as there are chains isn't mistaken.
    for extra in ((), (chains,)):
        if all(jnp.shape(given[path]) == (*extra, *jnp.shape(expected[path])) for path in given):
            return bool(extra)
    path = next(p for p in given if jnp.shape(given[p]) != jnp.shape(expected[p]))
    raise ValueError(
        f"init has {path} of shape {jnp.shape(given[path])}, the model {jnp.shape(expected[path])}"
        f"; give those shapes, or all with a leading axis of {chains} chains"
    )
