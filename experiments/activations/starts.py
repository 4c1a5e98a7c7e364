"""Where chains start: each at a network of its own, trained from a draw of the prior."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from experiments.activations.network import LAYERS, PRIOR, Network
from experiments.recipes import cosine_adam
from jaxeff.bayes import prior_scales
from jaxeff.bayes.posteriors import Random, draw_prior, log_joint, log_prior, with_random


@partial(jax.jit, static_argnames=("f", "likelihood", "chains", "steps"))
def trained_starts(
    key: PRNGKeyArray,
    f: Network,
    params: Any,
    data: tuple[Array, Array],
    index: Int[Array, ""],
    *,
    likelihood: str,
    chains: int,
    steps: int,
    rate: float = 0.01,
) -> Any:
    """Climb the likelihood with Adam, from a draw of the prior for each chain.

    The starts differ as draws of the prior do, so R-hat keeps its meaning; but no chain has to find
    its way to the data with a step size that isn't adapted yet. The prior is left out of the climb:
    it would lead to its mode, where next to none of the posterior is in so many dimensions, and a
    mass matrix estimated on the way back from there is far too small.

    Args:
        key: Random key.
        f: The network.
        params: Parameters: structure and shapes.
        data: Inputs and targets.
        index: Of the activation function.
        likelihood: As `jaxeff.bayes.nuts` takes it.
        chains: How many starts.
        steps: Steps of Adam for each; with none it stays at the draw, the last layer zero.
        rate: Its learning rate, decayed by a cosine.

    Returns:
        Parameters with a leading axis of chains.
    """
    scales = prior_scales(PRIOR, params)
    density = log_joint(lambda p, x: f(p, x, index), params, scales, likelihood)
    optimizer = cosine_adam(rate, max(steps, 1))

    def climb(key: PRNGKeyArray) -> Any:
        random = draw_prior(key, params, scales)
        # Outputs of zero: elsewhere a drawn log-variance may be beyond what floats hold.
        last = (f"{LAYERS[-1]}/kernel", f"{LAYERS[-1]}/bias")
        random |= {path: jnp.zeros_like(random[path]) for path in last}

        def step(_: Array, carry: tuple[Random, Any]) -> tuple[Random, Any]:
            random, state = carry
            gradient = jax.grad(lambda r: log_prior(r, scales) - density(r, data))(random)
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(random, updates), state

        random, _ = jax.lax.fori_loop(0, steps, step, (random, optimizer.init(random)))
        return with_random(jax.tree.map(jnp.asarray, params), random)

    return jax.vmap(climb)(jax.random.split(key, chains))
