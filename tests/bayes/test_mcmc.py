"""Held to Bayesian linear regression, whose posterior is known."""

import importlib
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxeff.bayes import (
    ChainsDivergedError,
    ConvergenceWarning,
    Cyclical,
    Draws,
    hmc,
    mclmc,
    mcmc,
    mixing,
    nuts,
    sghmc,
    sgld,
)
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
    ("sample", "settings"),
    [
        (nuts, {}),
        (nuts, {"engine": "numpyro"}),
        (nuts, {"pooled": False, "dense": True, "vectorized": True}),
        (hmc, {"steps": 4}),
        (hmc, {"steps": 4, "engine": "numpyro"}),
        (mclmc, {"steps": 4, "target_acceptance": 0.85}),
    ],
    ids=[
        "blackjax-nuts", "numpyro-nuts", "separate-dense-nuts", "blackjax-hmc", "numpyro-hmc",
        "blackjax-mclmc",
    ],
)  # fmt: skip
def test_hamiltonian_samplers_sample_the_posterior(sample, settings):
    key = jax.random.key(0)
    result = sample(key, linear, PARAMS, DATA, warmup=300, samples=400, **MODEL, **settings)
    assert_posterior(vectors(result), MEAN, COVARIANCE)
    assert result.converged
    assert result.stats["acceptance"].shape == (4, 400)
    assert result.warmup_stats["acceptance"].shape == (4, 300)
    assert (np.abs(result.acceptance - 0.85) < 0.13).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "settings"),
    [
        (sgld, {"step_size": 1e-4, "thin": 20}),
        (sghmc, {"step_size": 5e-4, "steps": 20, "friction": 10.0, "thin": 20}),
    ],
    ids=["sgld", "sghmc"],
)
def test_samplers_on_mini_batches_sample_the_posterior(sample, settings):
    data, mean, covariance = make_regression(1, mixed=False)
    key = jax.random.key(0)
    result = sample(
        key, linear, PARAMS, data, warmup=500, samples=1000, batch_size=32, vectorized=True,
        **MODEL, **settings,
    )  # fmt: skip
    assert_posterior(vectors(result), mean, covariance)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_sghmc_keeps_its_temperature(temperature):
    """The posterior to the power of 1 / temperature has variances so much smaller."""
    size, friction, wide = 0.02, 1.0, 400  # examples are all the same: gradients have no noise
    data = jnp.zeros((4, 1)), jnp.zeros((4, wide))
    result = sghmc(
        jax.random.key(0), lambda p, x: p["w"] + 0 * x, {"w": jnp.zeros(wide)}, data,
        step_size=size, steps=75, friction=friction, batch_size=1, temperature=temperature,
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
        hmc(
            jax.random.key(seed), model, PARAMS, data, shared=(1.0 + seed,), chains=2,
            checkpoint=tmp_path / str(seed), warmup=100 + seed, samples=20 + seed,
            **(MODEL | {"prior": PRIOR + seed}),
        )  # fmt: skip
        counts.append(len(traces))
    # Only to find the shape of the outputs, and for the checkpoint to know the function.
    assert counts[1] == counts[0] + 2


def few_draws(**options):
    """So few, by so small a step, that rounding stays small."""
    key = jax.random.key(3)
    settings = {"steps": 4, "step_size": 0.02, "warmup": 0, "samples": 5, **MODEL, **options}
    return hmc(key, linear, PARAMS, DATA, **settings)


@pytest.mark.slow
def test_chains_together_are_the_chains_alone():
    alone = vectors(few_draws(vectorized=False))
    np.testing.assert_allclose(vectors(few_draws(vectorized=True)), alone, rtol=1e-4)
    assert len(np.unique(alone[:, 0, 0])) == 4


@pytest.mark.slow
def test_a_parameter_without_a_prior_keeps_its_value():
    params = {"a": jnp.zeros(3), "b": {"c": jnp.full((1, 1), 1.5)}}
    prior = {"b/c": None, "*": PRIOR}
    result = hmc(
        jax.random.key(0), linear, params, DATA, steps=4, warmup=200, samples=400,
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
        return hmc(key, linear, PARAMS, DATA, steps=4, warmup=100, thin=2, **MODEL, **options)

    with monkeypatch.context() as patch:
        interrupt_after(patch, stop)
        with pytest.raises(KeyboardInterrupt):
            draw(samples=20, checkpoint=tmp_path / "run")
    resumed = draw(samples=20, checkpoint=tmp_path / "run")
    longer = draw(samples=25, checkpoint=tmp_path / "run")
    whole = draw(samples=25)
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
    def draw(seed=2, data=DATA, **options):
        settings = {"steps": 4, "warmup": 5, "samples": 5, **MODEL, **options}
        key = jax.random.key(seed)
        return hmc(key, linear, PARAMS, data, checkpoint=tmp_path, **settings)

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
        return sgld(
            jax.random.key(2), lambda p, x: scale * linear(p, x), PARAMS, DATA, batch_size=8,
            step_size=lambda i: 1e-3 / (1 + i) ** decay, warmup=1, samples=samples, init=init,
            checkpoint=tmp_path, **model, **changes,
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
        result = nuts(
            jax.random.key(2), funnel, start, (jnp.zeros((1, 1)), jnp.zeros((1, 9))), init=start,
            likelihood=likelihood, prior={"v": 3.0, "x": 1e3}, warmup=250, samples=500,
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
        result = hmc(
            jax.random.key(0), linear, PARAMS, DATA, steps=4, step_size=100.0, warmup=0,
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
        ({"steps": 0}, ValueError, "steps must be at least 1"),
        ({"target_acceptance": 1.5}, ValueError, "target_acceptance must be positive and below 1"),
        ({"engine": "stan"}, ValueError, "engine must be one of 'blackjax', 'numpyro', not 'stan'"),
        ({"devices": jax.local_devices() * 3}, ValueError, "4 chains can't be spread evenly"),
        ({"data": (DATA[0], DATA[1][:, None])}, ValueError, re.escape("likelihood is one of")),
    ],
)
def test_bad_settings(options, error, message):
    data = options.pop("data", DATA)
    with pytest.raises(error, match=message):
        hmc(jax.random.key(0), linear, PARAMS, data, **MODEL, **options)


def test_a_kernel_that_is_none():
    with pytest.raises(TypeError, match=r"kernel must be NUTS\(\)"):
        mcmc(jax.random.key(0), linear, PARAMS, DATA, "nuts", **MODEL)


@pytest.mark.slow
def test_a_density_that_is_nan_at_a_start():
    def broken(params, x):
        return linear(params, x) / jnp.where(params["a"][0] < 0, 0.0, 1.0)

    with pytest.raises(ValueError, match=r"at the start of chain .* is NaN or infinite"):
        hmc(jax.random.key(0), broken, PARAMS, DATA, **MODEL)


@pytest.mark.slow
def test_mini_batches():
    def draw(**options):
        return sgld(jax.random.key(0), linear, PARAMS, DATA, **MODEL, **options)

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

    with pytest.raises(ValueError, match="a single random number has no direction"):
        mclmc(jax.random.key(0), one, {"a": jnp.zeros(())}, DATA, warmup=1, samples=1, **MODEL)
    with pytest.raises(ValueError, match="MCLMC has a diagonal mass matrix"):
        mclmc(jax.random.key(0), linear, PARAMS, DATA, dense=True)


def test_a_cycle_cools_and_then_samples():
    cycle = Cyclical(0.2, 8, exploring=0.25)
    steps = jnp.arange(16)
    sizes, temperatures = jax.vmap(cycle)(steps), jax.vmap(cycle.temperature)(steps)
    expected = 0.1 * (1 + np.cos(np.pi * (np.arange(16) % 8) / 8))
    np.testing.assert_allclose(sizes, expected, rtol=1e-5)
    np.testing.assert_array_equal(temperatures, [0, 0, 1, 1, 1, 1, 1, 1] * 2)
    with pytest.raises(ValueError, match="length must be at least 1"):
        Cyclical(0.2, 0)
    with pytest.raises(ValueError, match="temperature"):
        sgld(jax.random.key(0), linear, PARAMS, DATA, step_size=0.1, batch_size=8, temperature=-1.0)


@pytest.mark.slow
def test_cycles_visit_modes_that_a_constant_step_size_does_not():
    """A weight that enters by its sine: a mode wherever it is half, hundreds of nats between."""
    x = jnp.ones((64, 1))
    y = jnp.full((64,), 2.0) + NOISE * jax.random.normal(jax.random.key(1), (64,))

    def wave(params, x):
        return 4 * jnp.sin(x @ params["w"])

    start = {"w": jnp.full(1, np.pi / 6, jnp.float32)}
    options = {
        "batch_size": 64, "warmup": 0, "chains": 2, "likelihood": gaussian, "prior": 3.0,
        "monitor": (), "init": start, "jitter": 0.0, "thin": 100, "samples": 60,
    }  # fmt: skip
    cycle = Cyclical(1e-3, 100, exploring=0.3)
    key = jax.random.key(0)
    cycles = sgld(
        key, wave, start, (x, y), step_size=cycle, temperature=cycle.temperature, **options
    )
    alone = sgld(key, wave, start, (x, y), step_size=1e-4, **options)
    drawn, stayed = (np.asarray(r.posterior.random["w"])[..., 0] for r in (cycles, alone))
    np.testing.assert_allclose(stayed, np.pi / 6, atol=0.2)
    # Modes lie at pi / 6 and 5 pi / 6; each draw is in one of them.
    np.testing.assert_allclose(4 * np.sin(drawn), np.mean(y), atol=5 * NOISE / 8)
    assert 0.1 < (drawn > np.pi / 2).mean() < 0.9
