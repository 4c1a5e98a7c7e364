"""`LearnedPowers`: powers of two, their ends' gradients, the width that follows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression.quantizers import nearest_power
from jaxeff.contrib import LearnedPowers
from tests.compression.tensors import WEIGHT

X = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(LearnedPowers(3, zero=True))
    check_method(LearnedPowers(4, per="channel"))


@pytest.mark.slow
def test_values_and_gradients_of_the_paper():
    low, high = 0.25, 1.0
    size = np.abs(X)
    power = 2.0 ** np.floor(0.5 + np.log2(size))
    expected = np.sign(X) * np.where(size <= low, low, np.where(size > high, high, power))

    def product(q, x):
        return jnp.vdot(G, q.quantize(x, WEIGHT))

    q = LearnedPowers(minimum=jnp.array(low), maximum=jnp.array(high))
    np.testing.assert_array_equal(q.quantize(jnp.asarray(X), WEIGHT), expected)
    by_q, by_x = jax.grad(product, (0, 1))(q, jnp.asarray(X))
    signs = G * np.sign(X)
    np.testing.assert_allclose(by_q.minimum, signs[size < low].sum(), rtol=1e-5)
    np.testing.assert_allclose(by_q.maximum, signs[size > high].sum(), rtol=1e-5)
    inside = (size >= low) & (size <= high)
    np.testing.assert_allclose(by_x, np.where(inside, G * expected / X, 0), rtol=1e-6)


def test_the_nearest_power_is_exact():
    x = np.float32(2.0) ** np.arange(-20, 21)
    np.testing.assert_array_equal(nearest_power(jnp.asarray(x)), x)
    np.testing.assert_array_equal(nearest_power(jnp.asarray(x * 1.414)), x)
    np.testing.assert_array_equal(nearest_power(jnp.asarray(x * 1.415)), 2 * x)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 5])
def test_levels_fill_the_width(bits, zero):
    q = LearnedPowers(bits, zero=zero).start(jnp.asarray(X), WEIGHT)
    assert q.width == bits
    assert jax.jit(lambda q: q.width)(q) == bits
    sizes = jnp.exp(jnp.linspace(-25.0, 2.0, 1001))
    x = jnp.concatenate([sizes, -sizes])[:, None]
    y = q.quantize(x, WEIGHT)
    assert len(np.unique(y)) == 2**bits - int(zero)
    assert (0 in np.asarray(y)) == zero
    np.testing.assert_array_equal(q.quantize(y, WEIGHT), y)


def test_the_gradient_of_the_width():
    # b = log2(log2(q_max / q_min) + 1) + 1
    q = LearnedPowers(minimum=jnp.array(0.25), maximum=jnp.array(2.0))
    grads = jax.grad(lambda q: q.width)(q)
    slope = 1 / (np.log(2) * 4) / np.log(2)
    np.testing.assert_allclose(grads.maximum, slope / 2, rtol=1e-6)
    np.testing.assert_allclose(grads.minimum, -slope / 0.25, rtol=1e-6)


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"initial must be between 2 and 6"):
        LearnedPowers(7)
    with pytest.raises(ValueError, match=r"LearnedPowers.minimum must be positive"):
        LearnedPowers(minimum=0.0)
