"""Held to Bayesian linear regression with correlated inputs, whose posterior is known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxeff.bayes import mixing, nuts

NOISE, PRIOR, N = 0.5, 0.8, 64
PARAMS = {"a": jnp.zeros(3), "b": {"c": jnp.zeros((1, 1))}}


def linear(params, x):
    return x @ jnp.concatenate([params["a"], params["b"]["c"][:, 0]])


def gaussian(mean):
    return dist.Normal(mean, NOISE)


def make_regression(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 4)) @ (np.diag([1, 0.5, 2, 1]) + 0.3)
    y = x @ [1.0, -0.5, 0.3, 2.0] + NOISE * rng.normal(size=N)
    covariance = np.linalg.inv(np.eye(4) / PRIOR**2 + x.T @ x / NOISE**2)
    return (np.float32(x), np.float32(y)), covariance @ x.T @ y / NOISE**2, covariance


@pytest.fixture(scope="module")
def regression():
    return make_regression(0)


def vectors(posterior):
    """All draws as vectors, ``[chains, draws, 4]``."""
    return np.concatenate([posterior.random["a"], posterior.random["b/c"][..., 0]], -1)


def assert_posterior(draws, mean, covariance):
    """Mean and variances within four standard errors, by the effective sample size."""
    scale = np.sqrt(np.diag(covariance))
    flat = (draws - mean) / scale
    for moment, expected in ((flat, 0), (flat**2, 1)):
        error = moment.std((0, 1)) / np.sqrt(mixing(moment).ess)
        assert (np.abs(moment.mean((0, 1)) - expected) < 4 * error).all()


@pytest.mark.parametrize("engine", ["blackjax", "numpyro"])
def test_nuts_samples_the_posterior(regression, engine):
    data, mean, covariance = regression
    result = nuts(
        jax.random.key(0), linear, PARAMS, data, likelihood=gaussian, prior=PRIOR,
        warmup=300, samples=500, engine=engine,
    )  # fmt: skip
    assert_posterior(vectors(result.posterior), mean, covariance)
    assert result.converged
    assert mixing(vectors(result.posterior)).min_ess > 400


def test_other_data_prior_and_length_use_the_same_program():
    traces = []

    def model(params, x, scale):
        traces.append(1)
        return scale * linear(params, x)

    counts = []
    for seed in (0, 1):
        data, _, _ = make_regression(seed)
        nuts(
            jax.random.key(seed), model, PARAMS, data, likelihood=gaussian, prior=PRIOR + seed,
            shared=(jnp.float32(seed),), warmup=100 + seed, samples=20 + seed, monitor=(),
        )  # fmt: skip
        counts.append(len(traces))
    assert counts[1] == counts[0] + 1  # only to find the shape of the outputs
