"""BlackJAX: `nuts` after `window_adaptation`, on a log density written in JAX."""

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.stats import norm

from experiments.scaling.engines import Session, compiled_work
from experiments.scaling.problem import Problem, Settings, forward


def mcmc(problem: Problem, settings: Settings) -> Session:
    """NUTS with a diagonal mass matrix."""
    scales = {name: scale for name, (_, scale) in problem.sites.items()}
    start, unravel = ravel_pytree({name: jnp.asarray(v) for name, (v, _) in problem.sites.items()})

    def log_joint(position: jax.Array, x: Any, y: Any) -> jax.Array:
        sites = unravel(position)
        mean, log_var = forward(sites, x, jax.nn.relu)
        likelihood = norm.logpdf(y, mean, jnp.exp(log_var / 2)).sum()
        return likelihood + sum(
            norm.logpdf(value, scale=scales[name]).sum() for name, value in sites.items()
        )

    def log_density(position: jax.Array) -> jax.Array:
        return log_joint(position, problem.x, problem.y)

    limit = {"max_num_doublings": settings.doublings}
    adaptation = blackjax.window_adaptation(blackjax.nuts, log_density, **limit)
    warm = jax.jit(lambda key: adaptation.run(key, start, num_steps=settings.warmup))
    (state, tuned), info = warm(jax.random.key(0))
    kernel = blackjax.nuts(log_density, **tuned)

    def step(state: Any, key: jax.Array) -> tuple[Any, Any]:
        state, info = kernel.step(key, state)
        return state, (state.position, info.num_integration_steps)

    @jax.jit
    def sample(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, settings.samples)
        return jax.lax.scan(step, state, keys)[1]

    compiled = sample.lower(jax.random.key(1)).compile()

    def run() -> list[int]:
        _, counts = jax.block_until_ready(compiled(jax.random.key(1)))
        return np.asarray(counts).tolist()

    return Session(
        compiled_work(jax.value_and_grad(log_joint), start, problem.x, problem.y),
        run,
        np.asarray(info.info.num_integration_steps).tolist(),
        float(tuned["step_size"]),
    )
