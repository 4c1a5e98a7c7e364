"""Infer one network and measure it; every sampled network of a task runs the same program."""

import time
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.activations import moons, network, sine
from experiments.activations.findings import RHAT
from experiments.activations.recipe import Sampling, Settings, Trial
from experiments.activations.source import MOONS, SINE
from experiments.activations.starts import trained_starts
from experiments.harness import Row, Run
from jaxeff.bayes import ConvergenceWarning, MCMCResult, nuts, prediction_mixing, svi
from jaxeff.training import cross_entropy, fit


def infer(trial: Trial, run: Run[Settings]) -> Row:
    """One trial, from data to figures; its "curves" are what figures show of it."""
    index = jnp.asarray(network.NAMES.index(trial.activation))
    runners = {
        ("sine", "nuts"): _sine_nuts,
        ("sine", "nuts-prior"): _sine_nuts,
        ("moons", "nuts"): _moons_nuts,
        ("moons", "svi"): _moons_svi,
    }
    started = time.perf_counter()
    figures, curves = runners[trial.task, trial.method](trial, index, run)
    row = {"table": f"{trial.task}-{trial.method}", "activation": trial.activation, **figures}
    seconds = time.perf_counter() - started
    return row | _source(trial) | {"seconds": seconds, "curves": curves}


def _sine_nuts(trial: Trial, index: jax.Array, run: Run[Settings]) -> Any:
    settings = run.settings
    sampling = settings.sine if trial.method == "nuts" else settings.prior_start
    known, f = sine.scene(settings, run.seed), network.network(sampling.kernel_scales)
    train = (known.inputs(known.train[0]), known.train[1])
    result = _sample(trial, index, train, 1, "gaussian", sampling, run)
    figures, curves = sine.evaluate(f, result.posterior, index, known)
    mixed = _mixing(f, result, index, known.inputs(known.x[:, None]), "gaussian")
    return figures | mixed, curves


def _moons_nuts(trial: Trial, index: jax.Array, run: Run[Settings]) -> Any:
    sampling = run.settings.moons
    known, f = moons.scene(run.settings, run.seed), network.network(sampling.kernel_scales)
    result = _sample(trial, index, known.train, 2, "categorical", sampling, run)
    # All draws are used, so the key plays no part.
    figures, maps = moons.evaluate(run.key, f, result.posterior, index, known)
    mixed = _mixing(f, result, index, known.points, "categorical")
    return figures | mixed, maps


def _moons_svi(trial: Trial, index: jax.Array, run: Run[Settings]) -> Any:
    own, known = run.settings.svi, moons.scene(run.settings, run.seed)
    start_key, fit_key, svi_key, key = jax.random.split(run.key, 4)
    params = network.start(start_key, 2, 2)
    # Each training is compiled anew, so for this function alone.
    f = network.single(trial.activation, own.kernel_scales)
    point = fit(
        fit_key,
        cross_entropy(f),
        params,
        known.train,
        optimizer=optax.adam(own.rate),
        epochs=own.pretrain_epochs,
        batch_size=own.batch_size,
        progress=False,
    )
    result = svi(
        svi_key,
        f,
        point.params,
        known.train,
        epochs=own.epochs,
        batch_size=own.batch_size,
        kl=own.kl,
        prior=network.PRIOR,
        init_scale=own.init_scale,
        optimizer=optax.adam(own.rate),
        progress=False,
    )
    of_index = network.network(own.kernel_scales)
    return moons.evaluate(key, of_index, result.posterior, index, known, own.samples)


def _sample(
    trial: Trial,
    index: jax.Array,
    train: tuple[Any, Any],
    inputs: int,
    likelihood: str,
    sampling: Sampling,
    run: Run[Settings],
) -> MCMCResult:
    start_key, key = jax.random.split(run.key)
    f, params = network.network(sampling.kernel_scales), network.start(start_key, inputs, 2)
    starts = trained_starts(
        start_key,
        f,
        params,
        train,
        index,
        likelihood=likelihood,
        chains=sampling.chains,
        steps=sampling.start_steps,
    )
    with warnings.catch_warnings():
        # What has not converged is marked in the tables.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return nuts(
            key,
            f,
            params,
            train,
            shared=(index,),
            warmup=sampling.warmup,
            samples=sampling.samples,
            chains=sampling.chains,
            max_depth=sampling.max_depth,
            likelihood=likelihood,
            target_acceptance=sampling.target_acceptance,
            prior=network.PRIOR,
            init=starts,
            monitor=(),
            checkpoint=run.work / f"{trial}-chains",
        )


def _mixing(
    f: network.Network, result: MCMCResult, index: jax.Array, x: jax.Array, likelihood: str
) -> dict[str, Any]:
    """Do the chains agree on what they predict?"""
    mixing = prediction_mixing(f, result.posterior, x, index, likelihood=likelihood)
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
    """The source's numbers, under the names of ours."""
    if trial.task == "sine" and trial.activation in SINE:
        theirs = SINE[trial.activation]._asdict()
    elif trial.task == "moons" and trial.activation in MOONS:
        row = MOONS[trial.activation]._asdict()
        theirs = {
            "accuracy": row[f"accuracy_{trial.method}"] / 100,
            "auroc": row[f"auroc_{trial.method}"],
        }
    else:
        theirs = {}
    return {f"source_{name}": value for name, value in theirs.items()}
