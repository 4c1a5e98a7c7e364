"""Covariances of a result's entries, against Monte Carlo over the function itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.moment_propagation import Gaussian, JointGaussian, MomentsError
from jaxeff.uncertainty import sample_logits

SAMPLES = 20_000
KEY = jax.random.key(0)


def conv(params, x):
    y = jax.lax.conv_general_dilated(
        x, params["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(y).mean((1, 2)) @ params["dense"]


def dense(params, x):
    return jnp.tanh(x.reshape(len(x), -1) @ params["first"]) @ params["dense"]


def posterior(shapes):
    """Noise of 10 % of the spread, less in the last layer: what is before it moves all results."""
    keys = jax.random.split(KEY, len(shapes))
    return {
        name: Gaussian(
            jax.random.normal(k, s) / s[-2] ** 0.5,
            jnp.full(s, 1e-5 if name == "dense" else 0.01 / s[-2]),
        )
        for k, (name, s) in zip(keys, shapes.items(), strict=True)
    }


NETS = {
    "conv": (conv, posterior({"kernel": (3, 3, 2, 8), "dense": (8, 4)})),
    "dense": (dense, posterior({"first": (50, 16), "dense": (16, 4)})),
}
X = jax.random.normal(jax.random.key(1), (3, 5, 5, 2))


@pytest.mark.oracle
@pytest.mark.parametrize("name", NETS)
def test_covariances_are_those_of_samples(name):
    f, weights = NETS[name]
    gaussian = jax.jit(jaxeff.moments(f, covariance=True))(weights, X)

    def draw(key):
        keys = jax.random.split(key, len(weights))
        return f({n: g.sample(k) for k, (n, g) in zip(keys, weights.items(), strict=True)}, X)

    y = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(2), SAMPLES))
    for i in range(len(X)):
        truth = np.cov(np.asarray(y[:, i], np.float64).T)
        scale = np.sqrt(np.outer(np.diag(truth), np.diag(truth)))
        # A correlation's standard error is below 1 / sqrt(n); orders above the first add per cents.
        np.testing.assert_allclose(gaussian.cov[i] / scale, truth / scale, atol=0.06)
        away = truth / scale - np.eye(4)
        assert np.abs(away).max() > 0.15  # there is something to find


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_the_diagonal_is_that_of_correlations(name):
    f, weights = NETS[name]
    joint = jaxeff.moments(f, covariance=True)(weights, X)
    alone = jaxeff.moments(f, method="linear")(weights, X)
    np.testing.assert_allclose(joint.var, alone.var, rtol=1e-5)
    np.testing.assert_array_equal(joint.mean, alone.mean)
    assert isinstance(joint.independent(), Gaussian)


@pytest.mark.slow
def test_calibration_scales_both_sides():
    f, weights = NETS["dense"]
    calibrated = jaxeff.calibrate_moments(KEY, f, weights, X, samples=200, method="linear")
    joint = jaxeff.moments(f, covariance=True)(calibrated, X)
    alone = jaxeff.moments(f, method="linear")(calibrated, X)
    np.testing.assert_allclose(joint.var, alone.var, rtol=1e-5)


def test_draws_have_the_covariance_even_a_singular_one():
    root = jax.random.normal(KEY, (2, 4, 2))
    joint = JointGaussian(jnp.ones((2, 4)), root @ root.mT)
    draws = np.asarray(sample_logits(jax.random.key(3), joint, SAMPLES), np.float64)
    for i in range(2):
        covariance = np.cov(draws[:, i].T)
        error = 4 * np.sqrt(2 / SAMPLES) * np.abs(joint.cov[i]).max()
        np.testing.assert_allclose(covariance, joint.cov[i], atol=error)
        np.testing.assert_allclose(
            draws[:, i].mean(0), 1, atol=4 * (joint.var[i].max() / SAMPLES) ** 0.5
        )


def test_draws_need_no_promotion_of_ranks():
    joint = JointGaussian(jnp.zeros((2, 3)), jnp.broadcast_to(jnp.eye(3), (2, 3, 3)))
    with jax.numpy_rank_promotion("raise"):
        assert joint.sample(KEY, (5, 4)).shape == (5, 4, 2, 3)
        assert joint.sample(KEY).shape == (2, 3)


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="covariance=True is the linear method's"):
        jaxeff.moments(dense, method="diagonal", covariance=True)
    f, weights = NETS["dense"]
    for g in (lambda p, x: f(p, x).reshape(-1, 2, 2), lambda p, x: f(p, x)[:, 0]):
        with pytest.raises(MomentsError, match="takes results that are vectors"):
            jaxeff.moments(g, covariance=True)(weights, X)
    with pytest.raises(TypeError, match="logits must be a Gaussian"):
        sample_logits(KEY, jnp.ones((2, 4)))
