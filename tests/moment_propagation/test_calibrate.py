"""Variances that are right: by factors measured once, by derivatives, by both."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.moment_propagation import Calibrated, Gaussian, MomentsError, calibrate_moments, moments
from jaxeff.nn import MLP


class Residual(nnx.Module):
    """Two convolutions around a skip, pooled over all positions."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.inner = nnx.Conv(8, 8, (3, 3), rngs=rngs)
        self.fc = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.stem(x))
        return self.fc(nnx.relu(x + self.inner(x)).mean((1, 2)))


F, PARAMS = functional(Residual(nnx.Rngs(0)))
POSTERIOR = jax.tree.map(lambda p: Gaussian(p, (0.1 * jnp.abs(p) + 0.02) ** 2), PARAMS)
TRAIN = jax.random.normal(jax.random.key(1), (16, 12, 12, 1))
TEST = jax.random.normal(jax.random.key(2), (4, 12, 12, 1))
KEY = jax.random.key(3)


def off(gaussian, samples):
    """The median error of a variance, relative."""
    return np.median(np.abs(gaussian.var / samples.var - 1))


@pytest.fixture(scope="module")
def samples(oracle):
    return oracle.monte_carlo(F, (POSTERIOR, TEST), 10_000, 500)


@pytest.fixture(scope="module")
def calibrated():
    return calibrate_moments(KEY, F, POSTERIOR, TRAIN, samples=2000, chunk=100)


@pytest.mark.slow
def test_calibrated_variances_are_within_5_percent_on_unseen_inputs(samples, calibrated):
    assert off(jax.jit(moments(F, shared=False))(POSTERIOR, TEST), samples) > 0.2
    assert off(jax.jit(moments(F))(calibrated, TEST), samples) < 0.05


@pytest.mark.slow
def test_derived_variances_know_all_correlations(samples):
    first = jax.jit(moments(F, correlations=True))
    assert off(first(POSTERIOR, TEST), samples) < 0.1
    factors = calibrate_moments(
        KEY, F, POSTERIOR, TRAIN, samples=2000, chunk=100, correlations=True
    )
    assert list(factors.factors) == ["result 0"]
    assert off(first(factors, TEST), samples) < 0.05


@pytest.mark.slow
def test_derived_variances_of_noise_at_the_input(oracle):
    f, params = functional(MLP((16, 32, 32, 4), rngs=nnx.Rngs(0)))
    x = Gaussian(jax.random.normal(KEY, (8, 16)), jnp.full((8, 16), 0.02))
    samples = oracle.monte_carlo(f, (params, x), 20_000, 5_000)
    assert off(jax.jit(moments(f))(params, x), samples) > 0.15
    assert off(jax.jit(moments(f, correlations=True))(params, x), samples) < 0.1


@pytest.mark.slow
def test_examples_are_derived_one_by_one():
    """As many results as a batch has examples, at the cost of one each, and the same numbers."""
    batch = jax.jit(moments(F, correlations=True))(POSTERIOR, TEST)
    alone = jax.jit(moments(F, correlations=True))(POSTERIOR, TEST[2:3])
    np.testing.assert_allclose(batch.var[2], alone.var[0], rtol=1e-4)
    mean = jax.jit(moments(F, shared=False))(POSTERIOR, TEST).mean
    np.testing.assert_allclose(batch.mean, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_one_linear_layer_is_exact_in_any_form():
    f, params = functional(nnx.Linear(6, 3, rngs=nnx.Rngs(0)))
    posterior = jax.tree.map(lambda p: Gaussian(p, jnp.full_like(p, 0.1)), params)
    x = jax.random.normal(KEY, (5, 6))
    expected = moments(f)(posterior, x)
    found = moments(f, correlations=True)(posterior, x)
    np.testing.assert_allclose(found.var, expected.var, rtol=1e-5)
    # Four standard errors of a variance from 4,000 samples.
    factors = calibrate_moments(KEY, f, posterior, x, samples=4000).factors
    (factor,) = factors.values()
    np.testing.assert_allclose(factor, 1, atol=4 * np.sqrt(2 / 4000))


@pytest.mark.slow
def test_factors_say_their_error_and_travel_as_a_pytree(calibrated):
    assert set(calibrated.factors) == {site for site, _ in calibrated.errors}
    assert all(0 < error <= np.sqrt(2 / 2000) * 1.001 for _, error in calibrated.errors)
    assert calibrated.factors["fc"].shape == (4,)
    assert "fc" in repr(calibrated)
    assert f"at most {max(error for _, error in calibrated.errors):.1%}" in repr(calibrated)
    copied = jax.tree.map(lambda a: a + 0, calibrated)
    assert isinstance(copied, Calibrated)
    assert copied.errors == calibrated.errors


@pytest.mark.slow
def test_stated_errors_hold_between_keys():
    """Factors of independent draws differ by no more than what is stated for each."""
    runs = [calibrate_moments(key, F, POSTERIOR, TRAIN) for key in jax.random.split(KEY, 6)]
    stated = dict(runs[0].errors)
    for site in stated:
        logs = np.log([run.factors[site] for run in runs])
        # The variance over 6 runs of a channel has a relative standard error of sqrt(2 / 5);
        # channels share their draws, so their mean counts as one.
        variance = logs.var(0, ddof=1).mean()
        assert variance < (1 + 4 * np.sqrt(2 / 5)) * stated[site] ** 2, site
    assert max(stated.values()) > 0.05


@pytest.mark.slow
def test_draws_do_not_depend_on_the_calls_they_are_spread_over():
    some = calibrate_moments(KEY, F, POSTERIOR, TRAIN, samples=41, progress=False)
    side_by_side = calibrate_moments(KEY, F, POSTERIOR, TRAIN, samples=41, chunk=41)
    for site, factor in some.factors.items():
        np.testing.assert_allclose(factor, side_by_side.factors[site], rtol=1e-4)


def test_neutral_factors_change_nothing(calibrated):
    ones = jax.tree.map(jnp.ones_like, calibrated.factors)
    plain = jax.jit(moments(F, shared=False))(POSTERIOR, TEST)
    neutral = jax.jit(moments(F))(Calibrated(POSTERIOR, ones), TEST)
    np.testing.assert_array_equal(plain.mean, neutral.mean)
    np.testing.assert_allclose(plain.var, neutral.var, rtol=1e-6)


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="nothing is random"):
        calibrate_moments(KEY, F, PARAMS, TRAIN)
    with pytest.raises(ValueError, match="samples must be at least 2"):
        calibrate_moments(KEY, F, POSTERIOR, TRAIN, samples=1)
    with pytest.raises(MomentsError, match="vmap over them"):
        moments(lambda p: p @ p, correlations=True)(
            Gaussian(jnp.ones((20, 20)), jnp.ones((20, 20)))
        )


@pytest.mark.slow
def test_embedded_tokens_are_examples_too():
    """They are told apart by their tokens; together their results would be too many to derive."""
    params = {"table": jnp.eye(4), "w": jax.random.normal(KEY, (4, 40))}
    posterior = jax.tree.map(lambda p: Gaussian(p, jnp.full_like(p, 0.01)), params)
    tokens = jax.random.randint(KEY, (12, 5), 0, 4)

    def f(p, tokens):
        return jnp.tanh(p["table"][tokens] @ p["w"]).mean(1)

    batch = jax.jit(moments(f, correlations=True))(posterior, tokens)
    alone = jax.jit(moments(f, correlations=True))(posterior, tokens[3:4])
    np.testing.assert_allclose(batch.var[3], alone.var[0], rtol=1e-4)


@pytest.mark.slow
def test_a_kernel_with_fresh_noise_counts_as_if_derived():
    """Whether a network is followed to its kernels or to the results of its dense layers."""
    f, params = functional(MLP((6, 8, 8, 3), rngs=nnx.Rngs(0)))
    posterior = jax.tree.map(lambda p: Gaussian(p, jnp.full_like(p, 0.01)), params)
    x = jax.random.normal(KEY, (2, 6))
    one = jax.jit(moments(f, correlations=True))(posterior, x)

    def split(p, x):  # every kernel in two parts: nobody's noise is fresh in one layer alone
        return f(jax.tree.map(lambda a, b: a + b, *p), x)

    half = jax.tree.map(lambda g: Gaussian(g.mean / 2, g.var / 2), posterior,
                        is_leaf=lambda v: isinstance(v, Gaussian))  # fmt: skip
    two = jax.jit(moments(split, correlations=True))((half, half), x)
    np.testing.assert_allclose(one.var, two.var, rtol=1e-4)
