import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import uncertainty as u
from jaxeff.moment_propagation import Gaussian

SAMPLES = 20_000


@pytest.fixture
def logits():
    keys = jax.random.split(jax.random.key(0))
    mean = 2 * jax.random.normal(keys[0], (6, 4))
    return Gaussian(mean, jax.random.uniform(keys[1], (6, 4), minval=0.1, maxval=4.0))


def test_samples_have_the_moments(logits):
    draws = u.sample_logits(jax.random.key(1), logits, SAMPLES)
    assert draws.shape == (SAMPLES, 6, 4)
    error = np.abs(draws.mean(0) - logits.mean)
    assert (error <= 5 * np.sqrt(logits.var / SAMPLES)).all()
    # The variance of a sample variance of a Gaussian is 2 var^2 / (n - 1).
    error = np.abs(draws.var(0) - logits.var)
    assert (error <= 5 * logits.var * np.sqrt(2 / SAMPLES)).all()


def test_binary_probability_agrees_with_quadrature():
    """With two logits the mean probability is a one-dimensional integral."""
    logits = Gaussian(jnp.array([[0.5, -0.3]]), jnp.array([[2.0, 1.0]]))
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    difference = 0.8 + np.sqrt(3.0) * nodes
    p = 1 / (1 + np.exp(-difference))
    mean = (weights * p).sum() / weights.sum()
    std = np.sqrt((weights * p**2).sum() / weights.sum() - mean**2)
    ours = u.predict_probs(jax.random.key(2), logits, SAMPLES)[0, 0]
    assert abs(float(ours) - mean) <= 5 * std / np.sqrt(SAMPLES)


@pytest.mark.slow
def test_no_variance_means_no_epistemic_part(logits):
    certain = Gaussian(logits.mean, jnp.zeros_like(logits.var))
    parts = u.from_gaussian(jax.random.key(3), certain, 10)
    expected = u.decompose_logits(logits.mean[None])
    # The mean over equal samples rounds, by a few units.
    np.testing.assert_allclose(parts.total, expected.total, atol=1e-5)
    np.testing.assert_allclose(parts.epistemic, 0, atol=1e-5)
    np.testing.assert_array_equal(u.raw_variance(certain), 0)


@pytest.mark.slow
def test_more_variance_means_more_epistemic_uncertainty(logits):
    key = jax.random.key(4)
    small = u.from_gaussian(key, Gaussian(logits.mean, 0.1 * logits.var), 1000)
    large = u.from_gaussian(key, Gaussian(logits.mean, 10 * logits.var), 1000)
    assert (large.epistemic > small.epistemic).all()


def test_raw_variance(logits):
    np.testing.assert_allclose(u.raw_variance(logits), logits.var.mean(-1))


@pytest.mark.slow
def test_key_and_jit(logits):
    run = jax.jit(u.from_gaussian, static_argnums=2)
    first, again = (run(jax.random.key(5), logits, 50) for _ in range(2))
    other = run(jax.random.key(6), logits, 50)
    eager = u.from_gaussian(jax.random.key(5), logits, 50)
    for field in u.Decomposition._fields:
        np.testing.assert_array_equal(getattr(first, field), getattr(again, field))
        np.testing.assert_allclose(getattr(first, field), getattr(eager, field), atol=1e-5)
        assert (getattr(first, field) != getattr(other, field)).all()
