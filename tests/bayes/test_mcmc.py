"""Held to Bayesian linear regression, whose posterior is known."""

import importlib
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxeff.bayes import (
    HMC,
    MCLMC,
    NUTS,
    SGHMC,
    SGLD,
    ChainsDivergedError,
    ConvergenceWarning,
    Cyclical,
    Draws,
    MarkovKernel,
    WindowAdaptation,
    mcmc,
    mixing,
)
from jaxeff.core import InterruptedRun
from jaxeff.moment_propagation import Gaussian
from jaxeff.training import CheckpointError
from tests.bayes.linear_model import NOISE, PRIOR, N, gaussian, linear, parameters

PARAMS = parameters(1)
run = importlib.import_module("jaxeff.bayes.sampling._run")


MODEL = {"likelihood": gaussian, "prior": PRIOR, "monitor": ()}


def make_regression(seed, mixed=True):
    """Data, and mean and covariance of the posterior."""
    rng = np.random.default_rng(seed)
    x = np.linalg.qr(rng.normal(size=(N, 4)))[0] * np.sqrt(N)
    x = x @ (np.diag([1, 0.5, 2, 1]) + 0.3) if mixed else x
    y = x @ [1.0, -0.5, 0.3, 2.0] + NOISE * rng.normal(size=N)
    covariance = np.linalg.inv(np.eye(4) / PRIOR**2 + x.T @ x / NOISE**2)
    return (np.float32(x), np.float32(y)), covariance @ x.T @ y / NOISE**2, covariance


DATA, MEAN, COVARIANCE = make_regression(0)


def vectors(result):
    """All draws as vectors, ``[chains, draws, 4]``."""
    random = result.posterior.random
    return np.concatenate([random["a"], random["b/c"][..., 0]], -1)


def assert_posterior(draws, mean, covariance):
    """Mean and second moments within four standard errors, by the effective sample size."""
    white = (draws - mean) @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    products = white[..., :, None] * white[..., None, :]
    for moment, expected in ((white, 0), (products, np.eye(4))):
        error = moment.std((0, 1)) / np.sqrt(mixing(moment).ess)
        assert (np.abs(moment.mean((0, 1)) - expected) < 4 * error).all()
    assert mixing(white).min_ess > 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "options"),
    [
        (NUTS(), {}),
        (NUTS(engine="numpyro"), {}),
        (NUTS(pooled=False, dense=True), {"vectorized": True}),
        (HMC(steps=4), {}),
        (HMC(steps=4, engine="numpyro"), {}),
        (MCLMC(steps=4, target_acceptance=0.85), {}),
    ],
    ids=[
        "blackjax-nuts", "numpyro-nuts", "separate-dense-nuts", "blackjax-hmc", "numpyro-hmc",
        "blackjax-mclmc",
    ],
)  # fmt: skip
def test_hamiltonian_samplers_sample_the_posterior(kernel, options):
    key = jax.random.key(0)
    result = mcmc(key, linear, PARAMS, DATA, kernel, warmup=300, samples=400, **MODEL, **options)
    assert_posterior(vectors(result), MEAN, COVARIANCE)
    assert result.converged
    assert result.stats["acceptance"].shape == (4, 400)
    assert result.warmup_stats["acceptance"].shape == (4, 300)
    assert (np.abs(result.acceptance - 0.85) < 0.13).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    [
        SGLD(step_size=1e-4, batch_size=32),
        SGHMC(step_size=5e-4, batch_size=32, steps=20, friction=10.0),
    ],
    ids=["sgld", "sghmc"],
)
def test_samplers_on_mini_batches_sample_the_posterior(kernel):
    data, mean, covariance = make_regression(1, mixed=False)
    key = jax.random.key(0)
    result = mcmc(
        key, linear, PARAMS, data, kernel, warmup=500, samples=1000, thin=20, vectorized=True,
        **MODEL,
    )  # fmt: skip
    assert_posterior(vectors(result), mean, covariance)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_sghmc_keeps_its_temperature(temperature):
    """The posterior to the power of 1 / temperature has variances so much smaller."""
    size, friction, wide = 0.02, 1.0, 400  # examples are all the same: gradients have no noise
    data = jnp.zeros((4, 1)), jnp.zeros((4, wide))
    kernel = SGHMC(
        step_size=size, steps=75, friction=friction, batch_size=1, temperature=temperature
    )
    result = mcmc(
        jax.random.key(0), lambda p, x: p["w"] + 0 * x, {"w": jnp.zeros(wide)}, data, kernel,
        warmup=20, samples=60, chains=4, vectorized=True, monitor=(), prior=2.0,
        likelihood=lambda mean: dist.Normal(mean, 4 / np.sqrt(3)).to_event(1),
    )  # fmt: skip
    draws = np.asarray(result.posterior.random["w"], float)  # variances of 1 at temperature 1
    # An iteration of 1.5 standard deviations of time leaves a correlation of about a fifth.
    correlation = np.corrcoef(draws[:, 1:].ravel(), draws[:, :-1].ravel())[0, 1]
    assert abs(correlation) < 0.4
    error = np.sqrt(2 / draws.size * (1 + correlation**2) / (1 - correlation**2))
    assert error < 0.006
    assert abs((draws**2).mean() / temperature - 1) < 4 * error + size * friction / 2


@pytest.mark.slow
def test_other_data_prior_and_length_use_the_same_program(tmp_path):
    traces = []

    def model(params, x, scale):
        traces.append(1)
        return scale * linear(params, x)

    counts = []
    for seed in (0, 1):
        data, _, _ = make_regression(seed)
        mcmc(
            jax.random.key(seed), model, PARAMS, data, HMC(), shared=(1.0 + seed,), chains=2,
            checkpoint=tmp_path / str(seed), warmup=100 + seed, samples=20 + seed,
            **(MODEL | {"prior": PRIOR + seed}),
        )  # fmt: skip
        counts.append(len(traces))
    # Only to find the shape of the outputs, and for the checkpoint to know the function.
    assert counts[1] == counts[0] + 2


def few_draws(**options):
    """So few, by so small a step, that rounding stays small."""
    key = jax.random.key(3)
    settings = {"warmup": 0, "samples": 5, **MODEL, **options}
    return mcmc(key, linear, PARAMS, DATA, HMC(steps=4, step_size=0.02), **settings)


@pytest.mark.slow
def test_chains_together_are_the_chains_alone():
    alone = vectors(few_draws(vectorized=False))
    np.testing.assert_allclose(vectors(few_draws(vectorized=True)), alone, rtol=1e-4)
    assert len(np.unique(alone[:, 0, 0])) == 4


@pytest.mark.slow
def test_a_parameter_without_a_prior_keeps_its_value():
    params = {"a": jnp.zeros(3), "b": {"c": jnp.full((1, 1), 1.5)}}
    prior = {"b/c": None, "*": PRIOR}
    result = mcmc(
        jax.random.key(0), linear, params, DATA, HMC(steps=4), warmup=200, samples=400,
        **(MODEL | {"prior": prior}),
    )  # fmt: skip
    assert set(result.posterior.random) == {"a"}
    assert float(result.posterior.at(0)["b"]["c"][0, 0]) == 1.5
    a = np.asarray(result.posterior.random["a"])
    # The Gaussian posterior of the others, given the value of the last.
    precision = np.linalg.inv(COVARIANCE)
    covariance = np.linalg.inv(precision[:3, :3])
    mean = MEAN[:3] - covariance @ precision[:3, 3] * (1.5 - MEAN[3])
    error = np.sqrt(np.diag(covariance) / mixing(a).ess)
    assert (np.abs(a.mean((0, 1)) - mean) < 4 * error).all()
    assert (error < 0.1 * np.sqrt(np.diag(covariance))).all()


def interrupt_after(monkeypatch, iterations):
    """Let the next run be interrupted when so many iterations are done, one at a time."""

    @contextmanager
    def bar(show, unit, total, done):
        def advance(more, line):
            nonlocal done
            done += more
            if done >= iterations:
                raise KeyboardInterrupt

        yield advance

    monkeypatch.setattr(run, "progress_bar", bar)
    monkeypatch.setattr(run, "SECONDS", 0)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [40, 112], ids=["mid-warmup", "mid-chain"])
def test_an_interrupted_run_goes_on_as_if_it_had_not_stopped(tmp_path, monkeypatch, stop):
    def draw(**options):
        key = jax.random.key(2)
        kernel = HMC(steps=4)
        return mcmc(key, linear, PARAMS, DATA, kernel, warmup=100, thin=2, **MODEL, **options)

    with monkeypatch.context() as patch:
        interrupt_after(patch, stop)
        with pytest.raises(InterruptedRun, match=f"after {stop} of 140 iterations") as error:
            draw(samples=20, checkpoint=tmp_path / "run")
    resumed = draw(samples=20, checkpoint=tmp_path / "run")
    longer = draw(samples=25, checkpoint=tmp_path / "run")
    whole = draw(samples=25)
    if stop > 100:  # every second iteration after the warm-up is kept
        for path, draws in error.value.result.random.items():
            np.testing.assert_array_equal(draws, whole.posterior.random[path][:, :6])
    else:
        assert error.value.result is None
    np.testing.assert_array_equal(vectors(longer), vectors(whole))
    np.testing.assert_array_equal(vectors(resumed), vectors(whole)[:, :20])
    for name, values in whole.stats.items():
        np.testing.assert_array_equal(longer.stats[name], values)
        assert values.shape == (4, 50)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warmup": 6}, "'warmup'"),
        ({"prior": 0.5}, "'prior'"),
        ({"steps": 5}, "'kernel'"),
        ({"data": make_regression(1)[0]}, r"data.*other values"),
        ({"seed": 7}, "key"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, monkeypatch, change, message):
    def draw(seed=2, data=DATA, steps=4, **options):
        kernel = HMC(steps=steps)
        settings = {"warmup": 5, "samples": 5, **MODEL, **options}
        key = jax.random.key(seed)
        return mcmc(key, linear, PARAMS, data, kernel, checkpoint=tmp_path, **settings)

    interrupt_after(monkeypatch, 1)
    with pytest.raises(KeyboardInterrupt):
        draw()
    with pytest.raises(CheckpointError, match=message):
        draw(**change)
    with pytest.raises(KeyboardInterrupt):
        draw(**change, resume=False)


@pytest.mark.slow
def test_a_checkpoint_of_other_functions_is_refused(tmp_path):
    def draw(samples=5, scale=1.0, noise=NOISE, decay=0.5, init=None, **changes):
        model = {**MODEL, "likelihood": lambda mean: dist.Normal(mean, noise)}
        kernel = SGLD(batch_size=8, step_size=lambda i: 1e-3 / (1 + i) ** decay)
        return mcmc(
            jax.random.key(2), lambda p, x: scale * linear(p, x), PARAMS, DATA, kernel, warmup=1,
            samples=samples, init=init, checkpoint=tmp_path, **model, **changes,
        )  # fmt: skip

    first = vectors(draw())
    cases = [
        (dict(scale=1.5), "the log-density differs: it computes with 1.5 only here"),
        (dict(noise=0.25), "the log-density differs: it computes"),
        (dict(decay=0.75), "setting 'kernel' has"),
        (dict(init=jax.tree.map(jnp.ones_like, PARAMS)), "start has other values"),
    ]
    for changes, message in cases:
        with pytest.raises(CheckpointError) as error:
            draw(**changes)
        assert message in str(error.value)
    forced = vectors(draw(6, noise=0.25, resume="force"))
    np.testing.assert_array_equal(forced[:, :5], first)


@pytest.mark.slow
def test_a_funnel_has_not_converged():
    """Neal's, centred: predictions mix long before the logarithm of their scale does.

    Of both, effective draws are what is looked at: an R-hat of chains this short is chance here,
    1.04 to 1.5 by the key, and with one key by how XLA rounds.
    """

    def funnel(params, x):
        return jnp.concatenate([params["x"], params["v"][None]])[None]

    def likelihood(outputs):
        return dist.Normal(outputs[..., :9], jnp.exp(outputs[..., 9:] / 2)).to_event(1)

    start = {"v": jnp.zeros(()), "x": jnp.zeros(9)}
    with pytest.warns(ConvergenceWarning, match="effective draws") as warned:
        result = mcmc(
            jax.random.key(2), funnel, start, (jnp.zeros((1, 1)), jnp.zeros((1, 9))), NUTS(),
            init=start, likelihood=likelihood, prior={"v": 3.0, "x": 1e3}, warmup=250, samples=500,
            jitter=0.01, vectorized=True,
        )  # fmt: skip
    assert result.predictions.min_ess > 1000
    assert " v has " in str(warned[0].message)
    assert not result.converged


@pytest.mark.slow
def test_starts(monkeypatch):
    def start(init, jitter=0.1):
        starts = importlib.import_module("jaxeff.bayes.sampling._run").starting_points
        scales = {"a": PRIOR, "b/c": PRIOR}
        return starts(jax.random.key(0), PARAMS, scales, 4, init, jitter)["a"]

    ones = jax.tree.map(jnp.ones_like, PARAMS)
    chains = jax.tree.map(lambda p: jnp.arange(4.0).reshape(4, *[1] * p.ndim) + p, PARAMS)
    np.testing.assert_array_equal(start(chains), chains["a"])
    np.testing.assert_array_equal(start(ones, 0.0), jnp.ones((4, 3)))
    assert 0.01 < np.std(start(ones)) < 0.3
    narrow = jax.tree.map(lambda p: Gaussian(p + 1, jnp.full_like(p, 1e-6)), PARAMS)
    np.testing.assert_allclose(start(narrow), jnp.ones((4, 3)), atol=0.01)
    random = {"a": jnp.ones((2, 3, 3)), "b/c": jnp.ones((2, 3, 1, 1))}
    np.testing.assert_array_equal(start(Draws(random, PARAMS)), jnp.ones((4, 3)))
    assert len(np.unique(start(None))) == 12
    with pytest.raises(ValueError, match=r"init has a of shape \(2,\), the model \(3,\)"):
        start({"a": jnp.zeros(2), "b": {"c": jnp.zeros((1, 1))}})
    with pytest.raises(ValueError, match="init and params differ in b/c"):
        start({"a": jnp.zeros(3)})


@pytest.mark.slow
def test_chains_that_diverge_or_are_stuck_are_named():
    with pytest.warns(ConvergenceWarning, match="diverged") as warned:
        result = mcmc(
            jax.random.key(0), linear, PARAMS, DATA, HMC(steps=4, step_size=100.0), warmup=0,
            samples=20, **(MODEL | {"monitor": None}),
        )  # fmt: skip
    message = str(warned[0].message)
    assert "chain 3 is stuck: it accepts 0.0 % of its moves" in message
    assert "R-hat of the predictions" in message
    assert not result.converged


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"samples": 0}, ValueError, "samples must be at least 1"),
        ({"warmup": -1}, ValueError, "warmup must be at least 0, but is -1"),
        ({"devices": jax.local_devices() * 3}, ValueError, "4 chains can't be spread evenly"),
        ({"data": (DATA[0], DATA[1][:, None])}, ValueError, re.escape("likelihood is one of")),
    ],
)
def test_bad_settings(options, error, message):
    data = options.pop("data", DATA)
    with pytest.raises(error, match=message):
        mcmc(jax.random.key(0), linear, PARAMS, data, HMC(), **MODEL, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HMC(steps=0), "steps must be at least 1"),
        (lambda: NUTS(target_acceptance=1.5), "target_acceptance must be positive and below 1"),
        (lambda: NUTS(engine="stan"), "engine must be one of 'blackjax', 'numpyro', not 'stan'"),
        (lambda: MCLMC(dense=True), "MCLMC has a diagonal mass matrix"),
        (lambda: SGLD(step_size=0.1, batch_size=8, temperature=-1.0), "temperature"),
    ],
)
def test_bad_settings_of_kernels(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("nuts", r"kernel must be a sampler such as NUTS\(\)"),
        (NUTS, r"kernel must be a sampler such as NUTS\(\)"),
        (blackjax.mala(lambda w: -(w**2).sum(), 0.1), r"such as partial\(blackjax.mala"),
    ],
)
def test_a_kernel_that_is_none(kernel, message):
    with pytest.raises(TypeError, match=message):
        mcmc(jax.random.key(0), linear, PARAMS, DATA, kernel, **MODEL)


def elliptical(log_density):
    """Slices along ellipses of the prior; the likelihood is what the prior leaves of the joint."""
    prior = dist.Normal(jnp.zeros(4), PRIOR).to_event(1)
    return blackjax.elliptical_slice(
        lambda w: log_density(w) - prior.log_prob(w), mean=jnp.zeros(4), cov=PRIOR**2 * jnp.eye(4)
    )


@dataclass(frozen=True)
class Metropolis:
    """Random steps of the adapted size, as somebody writes a sampler outside of the library."""

    adapts: ClassVar = WindowAdaptation(step_size=0.05, target_acceptance=0.4)
    batch_size: ClassVar = None

    class State(NamedTuple):
        position: jax.Array
        log_density: jax.Array

    def start(self, key, position, log_density):
        return self.State(position, log_density(position))

    def step(self, iteration, state, log_density, tuning):
        key, accept_key = jax.random.split(iteration.key)
        noise = jnp.sqrt(tuning.inverse_mass) * jax.random.normal(key, state.position.shape)
        proposed = self.start(key, state.position + tuning.step_size * noise, log_density)
        rate = jnp.minimum(1.0, jnp.exp(proposed.log_density - state.log_density))
        accepted = jax.random.uniform(accept_key) < rate
        state = jax.tree.map(lambda new, old: jnp.where(accepted, new, old), proposed, state)
        return state, {"acceptance": rate, "step_size": tuning.step_size}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "stats"),
    [
        (partial(blackjax.mala, step_size=3e-4), {"acceptance"}),
        (elliptical, {"acceptance"}),
        (Metropolis(), {"acceptance", "step_size"}),
    ],
    ids=["mala", "elliptical_slice", "own"],
)
def test_samplers_that_the_library_does_not_know(tmp_path, kernel, stats):
    def draw(samples, **options):
        return mcmc(
            jax.random.key(0), linear, PARAMS, DATA, kernel, warmup=300, samples=samples, thin=20,
            init=PARAMS, **(MODEL | options),
        )  # fmt: skip

    result = draw(500)
    assert_posterior(vectors(result), MEAN, COVARIANCE)
    assert set(result.stats) == stats
    assert result.converged
    assert "4 chains of 500 draws" in repr(result)
    # The step itself is what a checkpoint knows the run by.
    draw(10, checkpoint=tmp_path)
    np.testing.assert_array_equal(vectors(draw(20, checkpoint=tmp_path)), vectors(result)[:, :20])
    if stats == {"acceptance"}:
        kernel = partial(blackjax.mala, step_size=2e-4)
        with pytest.raises(CheckpointError, match="step"):
            draw(20, checkpoint=tmp_path)


def test_kernels_are_what_mcmc_asks_for():
    for kernel in (NUTS(), HMC(), MCLMC(), SGLD(step_size=0.1, batch_size=2), Metropolis()):
        assert isinstance(kernel, MarkovKernel)
    assert not isinstance(elliptical, MarkovKernel)


@pytest.mark.slow
def test_a_density_that_is_nan_at_a_start():
    def broken(params, x):
        return linear(params, x) / jnp.where(params["a"][0] < 0, 0.0, 1.0)

    with pytest.raises(ValueError, match=r"at the start of chain .* is NaN or infinite"):
        mcmc(jax.random.key(0), broken, PARAMS, DATA, HMC(), **MODEL)


@pytest.mark.slow
def test_mini_batches():
    def draw(warmup=1000, **settings):
        kernel = SGLD(**settings)
        return mcmc(jax.random.key(0), linear, PARAMS, DATA, kernel, warmup=warmup, **MODEL)

    with pytest.raises(TypeError, match="batch_size"):
        draw(step_size=1e-4)
    with pytest.raises(ValueError, match="a batch of 65 from 64 examples"):
        draw(step_size=1e-4, batch_size=65)
    with pytest.raises(ChainsDivergedError, match="chain 0 are NaN or infinite: lower the step"):
        draw(step_size=10.0, batch_size=32, warmup=100)


ON_TWO_DEVICES = """
import sys
import numpy as np
from tests.bayes.test_mcmc import COVARIANCE, MEAN, assert_posterior, few_draws, vectors

np.save(sys.argv[1], vectors(few_draws()))
result = few_draws(warmup=300, samples=400)
assert_posterior(vectors(result), MEAN, COVARIANCE)
assert len(np.unique(result.stats["step_size"])) == 1
assert len(result.posterior.random["a"].sharding.device_set) == 1
"""


@pytest.mark.process
def test_chains_spread_over_two_devices(tmp_path):
    path = str(tmp_path / "draws.npy")
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES, path], cwd=Path(__file__).parents[2],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(path), vectors(few_draws(vectorized=False)), rtol=1e-4)


def test_microcanonical_dynamics_need_a_direction():
    def one(params, x):
        return x[:, 0] * params["a"]

    params = {"a": jnp.zeros(())}
    with pytest.raises(ValueError, match="a single random number has no direction"):
        mcmc(jax.random.key(0), one, params, DATA, MCLMC(), warmup=1, samples=1, **MODEL)


def test_a_cycle_cools_and_then_samples():
    cycle = Cyclical(0.2, 8, exploring=0.25)
    steps = jnp.arange(16)
    sizes, temperatures = jax.vmap(cycle)(steps), jax.vmap(cycle.temperature)(steps)
    expected = 0.1 * (1 + np.cos(np.pi * (np.arange(16) % 8) / 8))
    np.testing.assert_allclose(sizes, expected, rtol=1e-5)
    np.testing.assert_array_equal(temperatures, [0, 0, 1, 1, 1, 1, 1, 1] * 2)
    with pytest.raises(ValueError, match="length must be at least 1"):
        Cyclical(0.2, 0)


@pytest.mark.slow
def test_cycles_visit_modes_that_a_constant_step_size_does_not():
    """A weight that enters by its sine: a mode wherever it is half, hundreds of nats between."""
    x = jnp.ones((64, 1))
    y = jnp.full((64,), 2.0) + NOISE * jax.random.normal(jax.random.key(1), (64,))

    def wave(params, x):
        return 4 * jnp.sin(x @ params["w"])

    start = {"w": jnp.full(1, np.pi / 6, jnp.float32)}
    options = {
        "warmup": 0, "chains": 2, "likelihood": gaussian, "prior": 3.0,
        "monitor": (), "init": start, "jitter": 0.0, "thin": 100, "samples": 60,
    }  # fmt: skip
    cycle = Cyclical(1e-3, 100, exploring=0.3)
    key = jax.random.key(0)
    cyclical = SGLD(step_size=cycle, temperature=cycle.temperature, batch_size=64)
    cycles = mcmc(key, wave, start, (x, y), cyclical, **options)
    alone = mcmc(key, wave, start, (x, y), SGLD(step_size=1e-4, batch_size=64), **options)
    drawn, stayed = (np.asarray(r.posterior.random["w"])[..., 0] for r in (cycles, alone))
    np.testing.assert_allclose(stayed, np.pi / 6, atol=0.2)
    # Modes lie at pi / 6 and 5 pi / 6; each draw is in one of them.
    np.testing.assert_allclose(4 * np.sin(drawn), np.mean(y), atol=5 * NOISE / 8)
    assert 0.1 < (drawn > np.pi / 2).mean() < 0.9
