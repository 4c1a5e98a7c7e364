import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.moment_propagation.rules._normalization import log_softmax, logsumexp, softmax


def logits(classes, spread, var, rows=6):
    a, b = jax.random.split(jax.random.key(classes))
    return Gaussian(
        spread * jax.random.normal(a, (rows, classes)),
        var * jax.random.uniform(b, (rows, classes), minval=0.5, maxval=1.5),
    )


@pytest.mark.slow
@pytest.mark.parametrize("var", [0.01, 1.0, 9.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_probabilities_are_within_the_documented_bias(classes, var, oracle):
    x = logits(classes, 2.0, var)
    ours = jax.jit(softmax)(x)
    samples = oracle.monte_carlo(jax.nn.softmax, (x,), 20_000, 5_000)
    assert (np.abs(ours.mean - samples.mean) <= 0.01 + 5 * samples.mean_error).all()
    std_error = samples.var_error / (2 * np.sqrt(samples.var) + 1e-9)
    assert (np.abs(np.sqrt(ours.var) - np.sqrt(samples.var)) <= 0.01 + 5 * std_error).all()
    np.testing.assert_allclose(ours.mean.sum(-1), 1, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("var", [0.1, 4.0])
def test_log_probabilities_are_within_the_documented_bias(var, oracle):
    x = logits(10, 2.0, var)
    ours = jax.jit(log_softmax)(x)
    samples = oracle.monte_carlo(jax.nn.log_softmax, (x,), 20_000, 5_000)
    oracle.assert_matches(ours, samples, mean=0.05, var=0.19)


def test_two_classes_are_exact(oracle):
    x = logits(2, 1.0, 2.0)
    difference = Gaussian(x.mean[:, 0] - x.mean[:, 1], x.var[:, 0] + x.var[:, 1])
    mean, var = oracle.exact(
        jax.nn.sigmoid,
        np.asarray(difference.mean, np.float64),
        np.sqrt(np.asarray(difference.var, np.float64)),
    )
    ours = jax.jit(softmax)(x)
    np.testing.assert_allclose(ours.mean[:, 0], mean, atol=1e-5)
    np.testing.assert_allclose(ours.var[:, 0], var, atol=1e-5)


@pytest.mark.slow
def test_small_variances_give_the_delta_method():
    x = logits(6, 1.0, 1e-6)
    ours = jax.jit(softmax)(x)
    p = jax.nn.softmax(x.mean)
    jacobian = p[:, :, None] * (jnp.eye(6) - p[:, None, :])
    np.testing.assert_allclose(ours.mean, p, rtol=1e-4)
    np.testing.assert_allclose(
        ours.var, jnp.einsum("bij,bj->bi", jacobian**2, x.var), rtol=5e-3, atol=1e-12
    )


@pytest.mark.slow
def test_logsumexp(oracle):
    x = logits(8, 1.0, 0.5)
    samples = oracle.monte_carlo(lambda x: jax.nn.logsumexp(x, -1), (x,), 20_000, 5_000)
    oracle.assert_matches(jax.jit(logsumexp)(x), samples, mean=0.02, var=0.10)


@pytest.mark.slow
def test_masked_entries_are_zero_and_one_class_is_certain():
    x = Gaussian(jnp.array([0.0, -jnp.inf, 1.0, -1e9]), jnp.array([1.0, 0.0, 0.5, 0.0]))
    ours = jax.jit(softmax)(x)
    alone = jax.jit(softmax)(Gaussian(x.mean[::2], x.var[::2]))
    np.testing.assert_allclose(ours.mean[::2], alone.mean, rtol=1e-5)
    np.testing.assert_array_equal(ours.mean[1::2], 0)
    np.testing.assert_array_equal(ours.var[1::2], 0)
    grads = jax.jit(jax.grad(lambda x: softmax(x).mean[0]))(x)
    assert np.isfinite(grads.mean).all()
    assert np.isfinite(grads.var).all()
    assert jax.jit(log_softmax)(x).mean[1] == -jnp.inf
    one = jax.jit(softmax)(Gaussian(jnp.ones((2, 1)), jnp.ones((2, 1))))
    np.testing.assert_allclose(one.mean, 1, atol=1e-6)
    np.testing.assert_allclose(one.var, 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("var", [0.0, 1e6])
def test_extremes_are_finite_with_finite_gradients(var):
    x = Gaussian(jnp.array([100.0, -200.0, 3e4, 100.0]), jnp.full(4, var))

    def total(x):
        p, log_p = softmax(x), log_softmax(x)
        return p.mean[0] + p.var.sum() + log_p.mean[0] + log_p.var.sum()

    value, grads = jax.jit(jax.value_and_grad(total))(x)
    assert np.isfinite(value)
    assert np.isfinite(grads.mean).all()
    assert np.isfinite(grads.var).all()
    assert (np.asarray(jax.jit(softmax)(x).var) >= 0).all()


def by_hand(x):
    e = jnp.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


RECOGNISED = {
    "softmax": (lambda x: jax.nn.softmax(x, 1), lambda x: softmax(x, 1)),
    "by hand": (by_hand, lambda x: softmax(x, 1)),
    "other axis": (lambda x: jax.nn.softmax(x, 0), lambda x: softmax(x, 0)),
    "softmin": (lambda x: jax.nn.softmax(-x, 1), lambda x: softmax(Gaussian(-x.mean, x.var), 1)),
    "log_softmax": (lambda x: jax.nn.log_softmax(x, 1), log_softmax),
    "through logsumexp": (
        lambda x: x - jax.nn.logsumexp(x, 1, keepdims=True),
        log_softmax,
    ),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), logsumexp),
    "scaled": (
        lambda x: jax.nn.softmax(x / 2, 1),
        lambda x: softmax(Gaussian(x.mean / 2, x.var / 4)),
    ),
    "vmapped": (jax.vmap(jax.nn.softmax), softmax),
    "vmapped over columns": (
        jax.vmap(jax.nn.softmax, in_axes=1, out_axes=1),
        lambda x: softmax(x, 0),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECOGNISED)
def test_softmax_is_recognised_however_it_is_written(name):
    f, rule = RECOGNISED[name]
    x = logits(3, 1.0, 0.5, rows=2)
    ours, expected = jax.jit(moments(lambda _, x: f(x), method="diagonal"))({}, x), jax.jit(rule)(x)
    np.testing.assert_allclose(ours.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, expected.var, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_softmax_over_two_axes():
    x = logits(3, 1.0, 0.5, rows=2)
    ours = jax.jit(moments(lambda _, x: jax.nn.softmax(x, (0, 1)), method="diagonal"))({}, x)
    flat = jax.jit(softmax)(Gaussian(x.mean.ravel(), x.var.ravel()))
    np.testing.assert_allclose(ours.mean.ravel(), flat.mean, rtol=1e-5)
