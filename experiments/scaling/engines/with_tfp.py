"""TensorFlow Probability on JAX: its No-U-Turn sampler, and its variational loss under optax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorflow_probability.substrates.jax as tfp
from jax.flatten_util import ravel_pytree

from experiments.scaling.engines import Session, compiled_work, repeated
from experiments.scaling.problem import INIT_SCALE, LEARNING_RATE, Problem, Settings, forward

tfd = tfp.distributions
STEP_SIZE = 1e-3
"""Where the adaptation starts; TensorFlow Probability looks for no reasonable one itself."""


def mcmc(problem: Problem, settings: Settings) -> Session:
    """NUTS whose step size is adapted by dual averaging; the mass matrix is the identity."""
    start, log_density = _log_density(problem)
    nuts = tfp.mcmc.NoUTurnSampler(
        lambda position: log_density(position, problem.x, problem.y), STEP_SIZE,
        max_tree_depth=settings.doublings,
    )  # fmt: skip
    kernel = tfp.mcmc.DualAveragingStepSizeAdaptation(
        nuts, num_adaptation_steps=settings.warmup, target_accept_prob=0.8
    )

    def steps_of(_: Any, results: Any) -> tuple[Any]:
        return (results.inner_results.leapfrogs_taken,)

    @jax.jit
    def sample(key: Any, position: Any, results: Any) -> Any:
        return tfp.mcmc.sample_chain(
            settings.samples, position, previous_kernel_results=results, kernel=kernel,
            trace_fn=steps_of, return_final_kernel_results=True, seed=key,
        )  # fmt: skip

    position, results = start, jax.jit(kernel.bootstrap_results)(start)
    warm: list[int] = []
    for key in jax.random.split(jax.random.key(0), settings.blocks):
        found = sample(key, position, results)
        position, results = found.all_states[-1], found.final_kernel_results
        warm += np.asarray(found.trace[0]).tolist()

    def run() -> list[int]:
        found = jax.block_until_ready(sample(jax.random.key(1), position, results))
        return np.asarray(found.trace[0]).tolist()

    work = compiled_work(jax.value_and_grad(log_density), start, problem.x, problem.y)
    return Session(work, run, warm, float(results.new_step_size))


def svi(problem: Problem, settings: Settings) -> Session:
    """A mean field by Adam; an epoch is a compiled loop over shuffled batches."""
    start, log_density = _log_density(problem)
    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)
    steps = len(y) // settings.batch
    optimizer = optax.adam(LEARNING_RATE)
    raw = float(np.log(np.expm1(INIT_SCALE)))
    posterior = (start, jnp.full_like(start, raw))

    def loss(posterior: Any, key: Any, rows: Any) -> Any:
        mean, raw = posterior
        surrogate = tfd.MultivariateNormalDiag(mean, jax.nn.softplus(raw))
        return tfp.vi.monte_carlo_variational_loss(
            lambda z: jax.vmap(log_density, (0, None, None))(z, x[rows], y[rows]),
            surrogate,
            seed=key,
        )

    def update(state: Any, inputs: Any) -> tuple[Any, Any]:
        posterior, optimizer_state = state
        value, gradient = jax.value_and_grad(loss)(posterior, *inputs)
        updates, optimizer_state = optimizer.update(gradient, optimizer_state)
        return (optax.apply_updates(posterior, updates), optimizer_state), value

    @jax.jit
    def epoch(state: Any, key: Any) -> tuple[Any, Any]:
        shuffle, sample = jax.random.split(key)
        order = jax.random.permutation(shuffle, len(y))[: steps * settings.batch]
        rows = order.reshape(steps, settings.batch)
        return jax.lax.scan(update, state, (jax.random.split(sample, steps), rows))

    initial = (posterior, optimizer.init(posterior))

    run = repeated(epoch, initial, settings.epochs, steps)
    inputs = (jax.random.key(0), jnp.arange(settings.batch))
    return Session(compiled_work(update, initial, inputs), run)


def _log_density(problem: Problem) -> tuple[jax.Array, Any]:
    """The starting point as one vector, and ``log_density(vector, x, y)``.

    One vector, because the sampler compiles several times as long for a list of arrays. The
    likelihood of a batch is scaled to that of all examples.
    """
    sites = problem.sites
    start, unravel = ravel_pytree({name: jnp.asarray(value) for name, (value, _) in sites.items()})
    priors = {
        name: tfd.Sample(tfd.Normal(np.float32(0), np.float32(scale)), value.shape)
        for name, (value, scale) in sites.items()
    }

    def log_density(position: Any, x: Any, y: Any) -> Any:
        values = unravel(position)
        mean, log_var = forward(values, x, jax.nn.relu)
        likelihood = tfd.Normal(mean, jnp.exp(log_var / 2)).log_prob(y).sum()
        prior = sum(priors[name].log_prob(value) for name, value in values.items())
        return len(problem.y) / len(y) * likelihood + prior

    return start, log_density
