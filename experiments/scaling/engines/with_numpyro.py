"""NumPyro: `NUTS`, and `AutoNormal` in `SVI`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import NUTS, SVI, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_value
from numpyro.infer.util import initialize_model

from experiments.scaling.engines import Session, compiled_work, repeated
from experiments.scaling.problem import INIT_SCALE, LEARNING_RATE, Problem, Settings, forward


def mcmc(problem: Problem, settings: Settings) -> Session:
    """NUTS with NumPyro's own window adaptation, in the loop that `MCMC` runs.

    `MCMC` compiles that loop again at every call, so it is written out here.
    """
    model, start = _model(problem)
    data = (jnp.asarray(problem.x), jnp.asarray(problem.y))
    kernel = NUTS(model, init_strategy=start, max_tree_depth=settings.doublings)

    def step(state: Any, data: Any) -> tuple[Any, Any]:
        state = kernel.sample(state, data, {})
        return state, (state.z, state.num_steps)

    @jax.jit
    def loop(state: Any, data: Any) -> Any:
        return jax.lax.scan(lambda state, _: step(state, data), state, length=settings.samples)

    state = kernel.init(jax.random.key(0), settings.warmup, None, data, {})
    warm: list[int] = []
    for _ in range(settings.blocks):
        state, (_, counts) = loop(state, data)
        warm += np.asarray(counts).tolist()

    def run() -> list[int]:
        _, (_, counts) = jax.block_until_ready(loop(state, data))
        return np.asarray(counts).tolist()

    info = initialize_model(
        jax.random.key(0), model, init_strategy=start, dynamic_args=True, model_args=data
    )

    def gradient(position: Any, *data: Any) -> Any:
        return jax.value_and_grad(info.potential_fn(*data))(position)

    work = compiled_work(gradient, info.param_info.z, *data)
    step_size = float(state.adapt_state.step_size)
    return Session(work, run, warm, step_size)


def svi(problem: Problem, settings: Settings) -> Session:
    """A mean field by Adam; an epoch is a compiled loop over shuffled batches."""
    model, start = _model(problem)
    guide = AutoNormal(model, init_loc_fn=start, init_scale=INIT_SCALE)
    inference = SVI(model, guide, numpyro.optim.Adam(LEARNING_RATE), TraceMeanField_ELBO())
    x, y = jnp.asarray(problem.x), jnp.asarray(problem.y)
    steps = len(y) // settings.batch

    def update(state: Any, rows: Any) -> tuple[Any, Any]:
        return inference.update(state, x[rows], y[rows])

    @jax.jit
    def epoch(state: Any, key: Any) -> tuple[Any, Any]:
        order = jax.random.permutation(key, len(y))[: steps * settings.batch]
        return jax.lax.scan(update, state, order.reshape(steps, settings.batch))

    initial = inference.init(jax.random.key(0), x[: settings.batch], y[: settings.batch])

    run = repeated(epoch, initial, settings.epochs, steps)
    return Session(compiled_work(update, initial, jnp.arange(settings.batch)), run)


def _model(problem: Problem) -> tuple[Any, Any]:
    sites = problem.sites
    examples = len(problem.y)

    def model(x: Any, y: Any) -> None:
        values = {}
        for name, (value, scale) in sites.items():
            prior = dist.Normal(0.0, scale).expand(value.shape).to_event(value.ndim)
            values[name] = numpyro.sample(name, prior)
        mean, log_var = forward(values, x, jax.nn.relu)
        with numpyro.plate("data", examples, subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(mean, jnp.exp(log_var / 2)), obs=y)

    return model, init_to_value(values={name: jnp.asarray(v) for name, (v, _) in sites.items()})
