"""Noise models: their moments by Monte Carlo, gradients, sweeps, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.noise import Additive, Mixed, Multiplicative, Noise

DRAWS = 20_000
X = jnp.array([-2.0, 0.0, 0.5, 3.0])


def within_standard_error(samples, mean, var):
    """Compares the mean and variance of normal-like samples with their expectation, at 5 SE."""
    samples = np.asarray(samples, np.float64)
    n = len(samples)
    np.testing.assert_array_less(np.abs(samples.mean(0) - mean), 5 * np.sqrt(var / n) + 1e-6)
    centred = (samples - samples.mean(0)) ** 2
    se = centred.std(0) / np.sqrt(n)
    np.testing.assert_array_less(np.abs(centred.mean(0) - var), 5 * se + 1e-6)


@pytest.mark.parametrize(
    ("model", "mean", "var"),
    [
        (Additive(0.3), X, np.full(4, 0.09)),
        (Additive(np.array([0.1, 0.2, 0.3, 0.4])), X, np.array([0.01, 0.04, 0.09, 0.16])),
        (Multiplicative(0.3), X, 0.09 * X**2),
        (Mixed(0.3, 0.5), X, 0.25 * X**2 + 0.09),
        (Mixed(0.3, 0.5, "add_mul"), X, 0.25 * X**2 + 0.09 * (1 + 0.25)),
    ],
)
def test_moments(model, mean, var):
    keys = jax.random.split(jax.random.key(0), DRAWS)
    within_standard_error(jax.vmap(model.perturb, (0, None))(keys, X), mean, var)


def test_fresh_sample_per_element():
    x = jnp.ones((100, 100))
    noise = Additive(1.0).perturb(jax.random.key(1), x) - x
    assert len(np.unique(noise)) > 9_900
    np.testing.assert_array_less(np.abs(np.corrcoef(noise[0], noise[1])[0, 1]), 5 / np.sqrt(100))


@pytest.mark.parametrize("model", [Additive(0.0), Multiplicative(0.0), Mixed(0.0, 0.0)])
def test_no_noise_is_the_identity(model):
    np.testing.assert_array_equal(model.perturb(jax.random.key(0), X), X)


def test_gradients_reach_input_and_level():
    key = jax.random.key(2)

    def total(model, x):
        return model.perturb(key, x).sum()

    eps = Additive(1.0).perturb(key, jnp.zeros(4))
    grads, dx = jax.grad(total, (0, 1))(Additive(0.3), X)
    np.testing.assert_allclose(grads.sigma, eps.sum(), rtol=1e-6)
    np.testing.assert_array_equal(dx, 1)
    grads, dx = jax.grad(total, (0, 1))(Multiplicative(0.3), X)
    np.testing.assert_allclose(grads.sigma, (X * eps).sum(), rtol=1e-6)
    np.testing.assert_allclose(dx, 1 + 0.3 * eps, rtol=1e-6)


def test_settings_survive_negative_gradients_on_the_host():
    negative = jax.tree.map(lambda s: -s, Additive(0.3))
    assert negative.sigma == -0.3
    assert jax.device_get(Mixed(0.1, 0.2)).order == "mul_add"


def test_levels_are_swept_by_vmap_in_one_trace():
    levels = Additive(jnp.linspace(0, 1, 30))
    swept = jax.jit(jax.vmap(lambda m: m.perturb(jax.random.key(0), X)))(levels)
    single = [Additive(s).perturb(jax.random.key(0), X) for s in np.linspace(0, 1, 30)]
    np.testing.assert_allclose(swept, single, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_dtype_is_kept(dtype):
    for model in (Additive(jnp.float32(0.3)), Multiplicative(0.3), Mixed(0.1, 0.1)):
        assert model.perturb(jax.random.key(0), X.astype(dtype)).dtype == dtype


@pytest.mark.parametrize("bad", [-0.1, float("nan"), float("inf"), np.array([0.1, -1.0])])
@pytest.mark.parametrize(
    "make", [Additive, Multiplicative, lambda s: Mixed(s, 0.1), lambda s: Mixed(0.1, s)]
)
def test_bad_levels_are_refused(make, bad):
    with pytest.raises(ValueError, match="must be at least 0"):
        make(bad)
    with pytest.raises(ValueError, match="must be at least 0"):
        make(jnp.asarray(bad))


def test_other_mistakes_are_named():
    with pytest.raises(TypeError, match=r"Additive\.sigma must be a number"):
        Additive("0.3")
    with pytest.raises(ValueError, match=r"Additive\.at must be one of 'output'"):
        Additive(0.3, at="outputs")
    with pytest.raises(ValueError, match=r"Mixed\.order must be one of 'mul_add'"):
        Mixed(0.3, 0.3, order="mul")
    with pytest.raises(TypeError, match="dtype int32"):
        Additive(0.3).perturb(jax.random.key(0), jnp.arange(3))
    with pytest.raises(ValueError, match=r"shape \(3,\), which doesn't broadcast"):
        Additive(np.ones(3)).perturb(jax.random.key(0), X)
    with pytest.raises(ValueError, match="doesn't broadcast"):
        Additive(np.ones((2, 4))).perturb(jax.random.key(0), X)


def test_traced_levels_are_not_checked():
    assert jax.jit(lambda s: Additive(s).sigma)(-1.0) == -1.0


def test_settings_follow_the_protocol():
    assert all(isinstance(m, Noise) for m in (Additive(0.1), Multiplicative(0.1), Mixed(0.1, 0.1)))
