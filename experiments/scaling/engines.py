"""NumPyro and jaxeff, each by NUTS and by mean-field SVI, as a user would write them.

Work is counted by XLA, before fusion: operations are one per element of a result and two per
multiply-accumulate; transcendental functions, which XLA counts apart, are one each. Bytes are those
that its compiled kernels read and write, from whatever holds them.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import NUTS, SVI, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_value
from numpyro.infer.util import initialize_model

import jaxeff
from experiments.harness import Count
from experiments.scaling.problem import INIT_SCALE, LEARNING_RATE, Problem, forward
from jaxeff import bayes
from jaxeff.bayes import ConvergenceWarning, MeanField, mcmc, prior_scales
from jaxeff.bayes.posteriors import log_joint
from jaxeff.bayes.variational import make_loss, mean_nll, start_from
from jaxeff.training import init, make_epoch

PRIOR = "fan_in"
"""The scales of `Problem`, as jaxeff calls them."""


@dataclass(frozen=True)
class Inference:
    """How inference is run, the same for every configuration."""

    warmup: Count = 100  # MCMC transitions that adapt step size and mass matrix
    samples: Count = 50  # MCMC transitions after them
    doublings: Count = 6  # largest depth of a NUTS tree
    epochs: Count = 150  # passes of SVI over the data
    batch: Count = 48  # examples per SVI update
    rounds: Count = 2  # how often everything is timed


class Work(NamedTuple):
    """What a gradient of the log density, or an update of SVI, costs."""

    flops: float  # floating-point operations
    macs: int  # multiply-accumulates of its matrix products alone
    moved: float  # bytes that its compiled kernels read and write


class Session(NamedTuple):
    """An engine whose programs are compiled."""

    work: Work  # of one gradient (MCMC) or of one update (SVI)
    # draws samples, warm-up included, or trains the epochs; returns what each took of `work`
    run: Callable[[], Sequence[int]]


def numpyro_mcmc(problem: Problem, settings: Inference) -> Session:
    """NUTS with NumPyro's own window adaptation, in the loop that `MCMC` runs.

    `MCMC` compiles that loop again at every call, so it is written out here.
    """
    model, start = _model(problem)
    data = (jnp.asarray(problem.x), jnp.asarray(problem.y))
    kernel = NUTS(model, init_strategy=start, max_tree_depth=settings.doublings)
    length = settings.warmup + settings.samples

    @jax.jit
    def loop(state: Any, data: Any) -> Any:
        def step(state: Any, _: None) -> tuple[Any, Any]:
            state = kernel.sample(state, data, {})
            return state, state.num_steps

        return jax.lax.scan(step, state, length=length)[1]

    state = kernel.init(jax.random.key(0), settings.warmup, None, data, {})
    info = initialize_model(
        jax.random.key(0), model, init_strategy=start, dynamic_args=True, model_args=data
    )

    def gradient(position: Any, *data: Any) -> Any:
        return jax.value_and_grad(info.potential_fn(*data))(position)

    work = _compiled_work(gradient, info.param_info.z, *data)
    return Session(work, lambda: np.asarray(loop(state, data)).tolist())


def numpyro_svi(problem: Problem, settings: Inference) -> Session:
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
    work = _compiled_work(update, initial, jnp.arange(settings.batch))
    return Session(work, _repeated(epoch, initial, settings.epochs, steps))


def jaxeff_mcmc(problem: Problem, settings: Inference) -> Session:
    """NUTS by the default engine."""
    start, data = _start(problem)

    def run() -> list[int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # so short a run can't converge
            chains = mcmc(
                jax.random.key(0), _network, start, data, bayes.NUTS(max_depth=settings.doublings),
                likelihood="gaussian", prior=PRIOR,
                init=start, jitter=0.0, chains=1, warmup=settings.warmup, samples=settings.samples,
                monitor=(), progress=False,
            )  # fmt: skip
        counts = [chains.warmup_stats["steps"][0], chains.stats["steps"][0]]
        return [int(count) for part in counts for count in part]

    density = log_joint(_network, start, prior_scales(PRIOR, start), "gaussian")
    return Session(_compiled_work(jax.value_and_grad(density), start, data), run)


def jaxeff_svi(problem: Problem, settings: Inference) -> Session:
    """A mean field by Adam."""
    start, data = _start(problem)
    means, scales, stds = start_from(start, PRIOR, INIT_SCALE)
    examples = len(problem.y)
    guide, optimizer = MeanField(), optax.adam(LEARNING_RATE)
    constant_rate = optax.constant_schedule(1.0)
    loss = make_loss(_network, guide, scales, mean_nll("gaussian"), constant_rate, examples)
    epoch = make_epoch(loss, optimizer, settings.batch)
    compiled = jax.jit(epoch)
    initial = init(guide.start(jax.random.key(0), means, stds), optimizer)
    run = _repeated(
        lambda state, key: compiled(state, key, data), initial, settings.epochs,
        examples // settings.batch,
    )  # fmt: skip
    # An epoch of one batch is one update, and the shuffling of that batch.
    batch = tuple(part[: settings.batch] for part in data)
    work = _compiled_work(
        lambda state, batch: epoch(state, jax.random.key(0), batch), initial, batch
    )
    return Session(work, run)


SESSIONS = {
    ("numpyro", "mcmc"): numpyro_mcmc, ("numpyro", "svi"): numpyro_svi,
    ("jaxeff", "mcmc"): jaxeff_mcmc, ("jaxeff", "svi"): jaxeff_svi,
}  # fmt: skip


def _repeated(epoch: Any, initial: Any, epochs: int, updates: int) -> Callable[[], list[int]]:
    def run() -> list[int]:
        state = initial
        for key in jax.random.split(jax.random.key(1), epochs):
            state, losses = epoch(state, key)
        jax.block_until_ready((state, losses))
        return [updates] * epochs

    return run


def _compiled_work(f: Callable[..., Any], *args: Any) -> Work:
    lowered = jax.jit(f).lower(*args)
    counts: Any = lowered.cost_analysis()
    # Bytes after fusion: before it they would be those of results that never leave a register.
    compiled: Any = lowered.compile().cost_analysis()
    return Work(
        counts["flops"] + counts.get("transcendentals", 0.0), jaxeff.cost(f, *args).macs,
        compiled["bytes accessed"],
    )  # fmt: skip


def _model(problem: Problem) -> tuple[Any, Any]:
    sites, examples = problem.sites, len(problem.y)

    def model(x: Any, y: Any) -> None:
        values = {}
        for name, (value, scale) in sites.items():
            prior = dist.Normal(0.0, scale).expand(value.shape).to_event(value.ndim)
            values[name] = numpyro.sample(name, prior)
        mean, log_var = forward(values, x)
        with numpyro.plate("data", examples, subsample_size=len(x)):
            numpyro.sample("y", dist.Normal(mean, jnp.exp(log_var / 2)), obs=y)

    return model, init_to_value(values={name: jnp.asarray(v) for name, (v, _) in sites.items()})


def _network(params: Any, x: Any) -> Any:
    return jnp.stack(forward(params, x), axis=-1)


def _start(problem: Problem) -> tuple[Any, Any]:
    start = {name: jnp.asarray(value) for name, (value, _) in problem.sites.items()}
    return start, (jnp.asarray(problem.x), jnp.asarray(problem.y))
