"""The photon-count distribution against scipy's negative binomial and its own moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxeff.photonics import MODES, BoseEinstein
from jaxeff.photonics._bose_einstein import distrax  # imported there without its warnings


@settings(deadline=None, max_examples=25)
@given(st.floats(1e-3, 1e3), st.floats(0.5, 100.0), st.integers(0, 2_000))
def test_log_prob_is_the_negative_binomial(mean, modes, count):
    ours = float(BoseEinstein(mean, modes).log_prob(count))
    expected = scipy.stats.nbinom.logpmf(count, modes, modes / (modes + mean))
    # float32 log-gammas of up to count * log(count) cancel
    np.testing.assert_allclose(
        ours, expected, rtol=1e-5, atol=1e-5 * (1 + count) * np.log(count + 2)
    )


@pytest.mark.slow
def test_probabilities_sum_to_one_and_others_are_zero():
    light = BoseEinstein(jnp.array([0.01, 1.0, 50.0]))
    total = jnp.exp(light.log_prob(jnp.arange(2_000)[:, None])).sum(0)
    np.testing.assert_allclose(total, 1, atol=1e-4)
    np.testing.assert_array_equal(light.log_prob(-1), -jnp.inf)
    np.testing.assert_array_equal(light.log_prob(0.5), -jnp.inf)


def test_moments_are_scipys():
    mean = np.array([0.1, 3.0, 500.0])
    light = BoseEinstein(mean)
    expected = scipy.stats.nbinom.stats(MODES, MODES / (MODES + mean), moments="mvs")
    ours = (light.mean(), light.variance(), light.skewness())
    for a, b in zip(ours, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    np.testing.assert_allclose(light.stddev() ** 2, light.variance(), rtol=1e-5)
    np.testing.assert_allclose(BoseEinstein(1e8).skewness(), 2 / np.sqrt(MODES), rtol=1e-4)


@pytest.mark.promotes("dtype")
@pytest.mark.parametrize("modes", [1.0, 3.7])
def test_mode_is_the_most_likely_count(modes):
    light = BoseEinstein(20.3, modes)
    assert light.mode() == jnp.argmax(light.log_prob(jnp.arange(200)))


@pytest.mark.slow
def test_samples_have_the_moments():
    light = BoseEinstein(jnp.array([0.0, 0.2, 4.0, 300.0]), modes=jnp.array([1.0, 5.0, 10.64, 3]))
    n = 40_000
    counts = np.asarray(light.sample(seed=jax.random.key(0), sample_shape=(n,)), np.float64)
    assert counts.shape == (n, 4)
    assert (counts[:, 0] == 0).all()
    var = np.asarray(light.variance(), np.float64)
    centred = (counts - counts.mean(0)) ** 2
    np.testing.assert_array_less(np.abs(counts.mean(0) - light.mean()), 5 * np.sqrt(var / n) + 1e-9)
    np.testing.assert_array_less(
        np.abs(centred.mean(0) - var), 5 * centred.std(0) / np.sqrt(n) + 1e-9
    )


@pytest.mark.slow
def test_samples_follow_the_probabilities():
    light = BoseEinstein(4.0, 2.5)
    n = 40_000
    counts = light.sample(seed=jax.random.key(1), sample_shape=(n,))
    observed = np.bincount(np.minimum(counts, 20), minlength=21)
    p = np.exp(np.asarray(light.log_prob(jnp.arange(20)), np.float64))
    expected = n * np.append(p, 1 - p.sum())
    assert scipy.stats.chisquare(observed, expected * n / expected.sum()).pvalue > 1e-4


@pytest.mark.slow
def test_it_is_a_distrax_distribution():
    light = BoseEinstein(jnp.ones((2, 3)), jnp.ones(3))
    assert isinstance(light, distrax.Distribution)
    assert light.batch_shape == (2, 3)
    assert light.event_shape == ()
    assert light[0].batch_shape == (3,)
    sample, log_p = jax.jit(lambda d, k: d.sample_and_log_prob(seed=k))(light, jax.random.key(0))
    np.testing.assert_allclose(log_p, light.log_prob(sample), rtol=1e-6)
    both = distrax.Independent(light, reinterpreted_batch_ndims=1)
    np.testing.assert_allclose(both.log_prob(sample), log_p.sum(-1), rtol=1e-6)


@pytest.mark.parametrize(("mean", "count"), [(3.0, 2), (3.0, 0), (0.5, 7)])
def test_log_prob_gradient(mean, count):
    # d/dn log p = (k/n - 1) M / (M + n)
    gradient = jax.grad(lambda n: BoseEinstein(n).log_prob(count))(mean)
    expected = (count / mean - 1) * MODES / (MODES + mean)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4)


def test_gradient_is_finite_in_the_dark():
    assert jax.grad(lambda n: BoseEinstein(n).log_prob(0))(0.0) == -1
