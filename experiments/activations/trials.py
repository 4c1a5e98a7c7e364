"""Infer one network and measure it; every sampled network of a task runs the same program."""

import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from experiments.activations import network, scenes
from experiments.activations.findings import RHAT
from experiments.activations.network import LAYERS, PRIOR, Network
from experiments.activations.recipe import Settings, Trial
from experiments.activations.source import MOONS, SINE
from experiments.harness import Row, Run
from experiments.recipes import cosine_adam
from jaxeff import bayes
from jaxeff.bayes.posteriors import Random, draw_prior, log_joint, log_prior, with_random
from jaxeff.training import cross_entropy, fit


def infer(trial: Trial, run: Run[Settings]) -> Row:
    """One trial, from data to figures; its "curves" are what figures show of it."""
    started = time.perf_counter()
    how = _svi if trial.method == "svi" else _nuts
    figures, curves = how(trial, jnp.asarray(network.NAMES.index(trial.activation)), run)
    row = {"table": f"{trial.task}-{trial.method}", "activation": trial.activation, **figures}
    seconds = time.perf_counter() - started
    row |= _source(trial) | {"seconds": seconds}
    return row | ({"drawn": trial.drawn} if trial.drawn else {"curves": curves})


def _nuts(trial: Trial, index: Array, run: Run[Settings]) -> scenes.Judged:
    settings = run.settings.how(trial)
    f = network.network(settings.kernel_scales)
    if trial.task == "sine":
        sine, outputs, likelihood = scenes.sine(run.settings, run.seed), 1, "gaussian"
        train, points = (sine.inputs(sine.train[0]), sine.train[1]), sine.inputs(sine.x[:, None])
    else:
        moons, outputs, likelihood = (
            scenes.moons(run.settings, run.seed + trial.drawn),
            2,
            "categorical",
        )
        train, points = moons.train, moons.points
    start_key, key = jax.random.split(run.key)
    params = network.start(start_key, outputs, 2)
    starts = trained_starts(
        start_key, f, params, train, index,
        Climb(likelihood=likelihood, chains=settings.chains, steps=settings.start_steps),
    )  # fmt: skip
    with warnings.catch_warnings():
        # What has not converged is marked in the tables.
        warnings.simplefilter("ignore", bayes.ConvergenceWarning)
        kernel = bayes.NUTS(
            max_depth=settings.max_depth, target_acceptance=settings.target_acceptance
        )
        result = bayes.mcmc(
            key, f, params, train, kernel, shared=(index,), warmup=settings.warmup,
            samples=settings.samples, chains=settings.chains, likelihood=likelihood, prior=PRIOR,
            init=starts, monitor=(), checkpoint=run.work / f"{trial}-chains",
        )  # fmt: skip
    if trial.task == "sine":
        figures, curves = scenes.on_sine(f, result.posterior, index, sine)
    else:  # all draws are used, so the key plays no part
        figures, curves = scenes.on_moons(run.key, f, result.posterior, index, moons)
    return figures | _mixing(f, result, index, points, likelihood), curves


@dataclass(frozen=True, kw_only=True)
class Climb:
    """How chains come to their starts.

    Attributes:
        likelihood: As `jaxeff.bayes.mcmc` takes it.
        chains: How many starts.
        steps: Steps of Adam for each; with none it stays at the draw, the last layer zero.
        rate: Its learning rate, decayed by a cosine.
    """

    likelihood: str
    chains: int
    steps: int
    rate: float = 0.01


@partial(jax.jit, static_argnames=("f", "climb"))
def trained_starts(
    key: PRNGKeyArray,
    f: Network,
    params: Any,
    data: tuple[Array, Array],
    index: Int[Array, ""],
    climb: Climb,
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
        climb: How they come there.

    Returns:
        Parameters with a leading axis of chains.
    """
    scales = bayes.prior_scales(PRIOR, params)
    density = log_joint(lambda p, x: f(p, x, index), params, scales, climb.likelihood)
    optimizer = cosine_adam(climb.rate, max(climb.steps, 1))

    def climbed(key: PRNGKeyArray) -> Any:
        random = draw_prior(key, params, scales)
        # Outputs of zero: elsewhere a drawn log-variance may be beyond what floats hold.
        last = (f"{LAYERS[-1]}/kernel", f"{LAYERS[-1]}/bias")
        random |= {path: jnp.zeros_like(random[path]) for path in last}

        def step(_: Array, carry: tuple[Random, Any]) -> tuple[Random, Any]:
            random, state = carry
            gradient = jax.grad(lambda r: log_prior(r, scales) - density(r, data))(random)
            updates, state = optimizer.update(gradient, state)
            return optax.apply_updates(random, updates), state

        random, _ = jax.lax.fori_loop(0, climb.steps, step, (random, optimizer.init(random)))
        return with_random(jax.tree.map(jnp.asarray, params), random)

    return jax.vmap(climbed)(jax.random.split(key, climb.chains))


def _svi(trial: Trial, index: Array, run: Run[Settings]) -> scenes.Judged:
    settings = run.settings.how(trial)
    known = scenes.moons(run.settings, run.seed + trial.drawn)
    start_key, fit_key, svi_key, key = jax.random.split(run.key, 4)
    # Each training is compiled anew, so for this function alone.
    f = network.single(trial.activation, settings.kernel_scales)
    shared: dict[str, Any] = {
        "optimizer": optax.adam(settings.rate), "batch_size": settings.batch_size, "progress": False
    }  # fmt: skip
    point = fit(
        fit_key, cross_entropy(f), network.start(start_key, 2, 2), known.train,
        epochs=settings.pretrain_epochs, **shared,
    )  # fmt: skip
    result = bayes.svi(
        svi_key, f, point.params, known.train, epochs=settings.epochs, kl=settings.kl, prior=PRIOR,
        init_scale=settings.init_scale, **shared,
    )  # fmt: skip
    of_index = network.network(settings.kernel_scales)
    return scenes.on_moons(key, of_index, result.posterior, index, known, settings.samples)


def _mixing(
    f: Network, result: bayes.MCMCResult, index: Array, x: Array, likelihood: str
) -> dict[str, Any]:
    """Do the chains agree on what they predict?"""
    mixing = bayes.prediction_mixing(f, result.posterior, x, index, likelihood=likelihood)
    changing = ~np.isnan(mixing.rhat)
    return {
        "rhat_max": mixing.max_rhat,
        "rhat_share": float((mixing.rhat[changing] < RHAT).mean()),
        "ess_min": mixing.min_ess,
        "ess_median": float(np.median(mixing.ess[changing])),
        "divergences": int(result.divergences.sum()),
        "acceptance": float(result.acceptance.mean()),
        "step_size": float(result.stats["step_size"].mean()),
        "steps": float(result.stats["steps"].mean()),
        "converged": mixing.max_rhat < RHAT,
    }


def _source(trial: Trial) -> dict[str, float]:
    """The thesis' numbers, under the names of ours."""
    theirs: dict[str, float] = {}
    if trial.task == "sine" and trial.activation in SINE:
        theirs = SINE[trial.activation]._asdict()
    elif trial.task == "moons" and trial.activation in MOONS:
        row = MOONS[trial.activation]._asdict()
        theirs = {
            "accuracy": row[f"accuracy_{trial.method}"] / 100,
            "auroc": row[f"auroc_{trial.method}"],
        }
    return {f"source_{name}": value for name, value in theirs.items()}
