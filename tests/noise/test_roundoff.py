"""Round-off: rounding to a step, and the uniform noise that it looks like."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.noise import Quantization, UniformNoise

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (50_000,))


def standard_error_of_variance(samples):
    samples = np.asarray(samples, np.float64)
    return ((samples - samples.mean()) ** 2).std() / np.sqrt(samples.size)


@pytest.mark.parametrize("model", [UniformNoise(0.3), Quantization(0.3)])
def test_the_error_is_uniform_over_one_step(model):
    error = np.asarray(model.perturb(KEY, X) - X, np.float64)
    assert np.abs(error).max() <= 0.15 + 1e-6
    assert abs(error.mean()) < 5 * 0.3 / np.sqrt(12 * X.size)
    assert abs(error.var() - 0.09 / 12) < 5 * standard_error_of_variance(error)
    assert abs(np.corrcoef(error, X)[0, 1]) < 5 / np.sqrt(X.size)


def test_rounding_by_hand():
    np.testing.assert_allclose(
        Quantization(0.25).perturb(KEY, jnp.array([-0.4, 0.1, 0.13, 2.0])), [-0.5, 0, 0.25, 2]
    )
    x = jnp.array([-1.0, 0.1, 2.0])  # a range of 3: two bits have steps of 1
    np.testing.assert_allclose(Quantization(1 / 3, relative=True).perturb(KEY, x), [-1, 0, 2])
    np.testing.assert_array_equal(Quantization(0.0).perturb(KEY, X), X)


def test_gradients_pass_through_and_reach_the_step():
    x = jnp.array([0.3, 0.9])

    def total(step, x):
        return Quantization(step).perturb(KEY, x).sum()

    d_step, dx = jax.grad(total, (0, 1))(0.25, x)
    np.testing.assert_array_equal(dx, 1)
    np.testing.assert_allclose(d_step, (1 - 1.2) + (4 - 3.6), rtol=1e-5)
    assert jnp.isfinite(jax.grad(total)(0.0, x))


def test_steps_are_swept_in_one_program():
    steps = jnp.array([0.0, 0.1, 1.0])
    for kind in (Quantization, UniformNoise):
        swept = jax.jit(jax.vmap(lambda m: m.perturb(KEY, X[:9])))(kind(steps))
        each = [kind(s).perturb(KEY, X[:9]) for s in np.asarray(steps)]
        np.testing.assert_allclose(swept, each, rtol=1e-5, atol=1e-6)


def test_mistakes_are_named():
    for kind, name in ((Quantization, "step"), (UniformNoise, "width")):
        with pytest.raises(ValueError, match=rf"{kind.__name__}\.{name} must be at least 0"):
            kind(float("nan"))
        with pytest.raises(TypeError, match="dtype int32"):
            kind(0.1).perturb(KEY, jnp.arange(3))
