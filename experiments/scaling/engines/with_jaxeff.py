"""jaxeff itself: `jaxeff.bayes.nuts` with one chain, and the epochs of `jaxeff.bayes.svi`."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.scaling.engines import Session, compiled_work, repeated
from experiments.scaling.problem import INIT_SCALE, LEARNING_RATE, Problem, Settings, forward
from jaxeff.bayes import ConvergenceWarning, MeanField, nuts, prior_scales
from jaxeff.bayes.posteriors import log_joint
from jaxeff.bayes.variational import make_loss, mean_nll, start_from
from jaxeff.training import init, make_epoch

PRIOR = "fan_in"  # the scales of `Problem`


def mcmc(problem: Problem, settings: Settings) -> Session:
    """NUTS by the default engine; a run is the whole call, its warm-up included."""
    start, data = _start(problem)

    def call() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # so short a run can't converge
            return nuts(
                jax.random.key(0), _network, start, data, likelihood="gaussian", prior=PRIOR,
                init=start, jitter=0.0, chains=1, warmup=settings.warmup, samples=settings.samples,
                max_depth=settings.doublings, monitor=(), progress=False,
            )  # fmt: skip

    def run() -> list[int]:
        found = call()
        counts = [found.warmup_stats["steps"][0], found.stats["steps"][0]]
        return [int(count) for part in counts for count in part]

    density = log_joint(_network, start, prior_scales(PRIOR, start), "gaussian")
    work = compiled_work(jax.value_and_grad(density), start, data)
    first = call()
    steps = first.warmup_stats["steps"][0].astype(int)
    return Session(work, run, steps.tolist(), float(first.stats["step_size"][0, 0]))


def svi(problem: Problem, settings: Settings) -> Session:
    """A mean field by Adam."""
    start, data = _start(problem)
    means, scales, stds = start_from(start, PRIOR, INIT_SCALE)
    examples = len(problem.y)
    guide, optimizer = MeanField(), optax.adam(LEARNING_RATE)
    whole = optax.constant_schedule(1.0)
    loss = make_loss(_network, guide, scales, mean_nll("gaussian"), whole, examples)
    epoch = make_epoch(loss, optimizer, settings.batch)
    compiled = jax.jit(epoch)
    initial = init(guide.start(jax.random.key(0), means, stds), optimizer)

    steps = examples // settings.batch
    run = repeated(lambda state, key: compiled(state, key, data), initial, settings.epochs, steps)
    # An epoch of one batch is one update, and the shuffling of that batch.
    batch = tuple(part[: settings.batch] for part in data)
    work = compiled_work(
        lambda state, batch: epoch(state, jax.random.key(0), batch), initial, batch
    )
    return Session(work, run)


def _network(params: Any, x: Any) -> Any:
    return jnp.stack(forward(params, x, jax.nn.relu), axis=-1)


def _start(problem: Problem) -> tuple[Any, Any]:
    start = {name: jnp.asarray(value) for name, (value, _) in problem.sites.items()}
    return start, (jnp.asarray(problem.x), jnp.asarray(problem.y))
