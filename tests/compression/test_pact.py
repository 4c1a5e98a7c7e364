"""`PACT`: values and gradients against the paper's equations, levels, error over bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import PACT
from tests.compression.tensors import DATA, WEIGHT

X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(PACT(3))
    check_method(PACT(jnp.array(3.0), per="channel"))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_values_and_gradients_of_the_paper(bits):
    alpha, n = np.float32(0.8), 2**bits - 1
    clipped = np.clip(X, 0, alpha)
    by_magnitudes = 0.5 * (np.abs(X) - np.abs(X - alpha) + alpha)  # eq. 1
    np.testing.assert_allclose(clipped, by_magnitudes, atol=1e-6)
    expected = np.round(clipped * (n / alpha)) * (alpha / n)  # eq. 2

    def product(q, x):
        return jnp.vdot(G, q.quantize(x, DATA))

    q = PACT(bits, jnp.array(alpha), signed=False)
    np.testing.assert_allclose(q.quantize(jnp.asarray(X), DATA), expected, atol=1e-6)
    by_q, by_x = jax.grad(product, (0, 1))(q, jnp.asarray(X))
    np.testing.assert_allclose(by_q.alpha, G[clipped == alpha].sum(), rtol=1e-6)  # eq. 3
    np.testing.assert_allclose(by_x, G * (clipped == X), rtol=1e-6)


def test_the_end_itself_belongs_to_alpha():
    grads = jax.grad(lambda a: PACT(4, a, False).quantize(jnp.ones((1, 1)), DATA).sum())(1.0)
    assert grads == 1  # eq. 3: one for x >= alpha


def test_weights_have_a_sign_and_levels_of_their_own_channel():
    q = PACT(3, per="channel").start(jnp.asarray(X), WEIGHT)
    np.testing.assert_allclose(q.alpha, np.abs(X).max(0, keepdims=True))
    y = q.quantize(jnp.asarray(X), WEIGHT)
    assert all(len(np.unique(y[:, i])) <= 7 for i in range(4))
    codes = np.asarray(y / (q.alpha / 3))
    np.testing.assert_allclose(codes, np.round(X / (np.abs(X).max(0) / 3)), atol=1e-6)
    np.testing.assert_array_equal(q.quantize(y, WEIGHT), y)
    below = jax.grad(lambda a: PACT(3, a).quantize(jnp.full((1, 1), -2.0), WEIGHT).sum())(0.5)
    assert below == -1


def test_the_error_is_that_of_a_uniform_grid():
    x = jnp.linspace(0, 1, 20001)[:, None]
    for bits in (3, 5, 7):
        error = jnp.mean((PACT(bits, 1.0, False).quantize(x, DATA) - x) ** 2)
        np.testing.assert_allclose(error, 1 / (2**bits - 1) ** 2 / 12, rtol=0.01)


def test_the_penalty_and_its_gradient():
    q = PACT(4, jnp.array([[0.5, 2.0]]), decay=0.1, per="channel")
    x = jnp.zeros((3, 2))
    np.testing.assert_allclose(q.penalty(x, WEIGHT), 0.1 * (0.25 + 4), rtol=1e-6)
    by_alpha = jax.grad(lambda q: q.penalty(x, WEIGHT))(q).alpha
    np.testing.assert_allclose(by_alpha, 0.2 * q.alpha, rtol=1e-6)
    assert len(jax.tree.leaves(q)) == 1  # the factor isn't learnt


def test_widths_are_swept_in_one_program():
    x = jnp.asarray(X)
    swept = jax.vmap(lambda b: PACT(b, 1.0, False).quantize(x, DATA))(jnp.array([2.0, 5.0]))
    for y, bits in zip(swept, (2, 5), strict=True):
        np.testing.assert_array_equal(y, PACT(bits, 1.0, False).quantize(x, DATA))


def test_bits_of_an_array():
    assert PACT(4).storage((6, 4), WEIGHT) == 24 * 4 + 32
    assert PACT(4, per="channel").storage((6, 4), WEIGHT) == 24 * 4 + 4 * 32


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"PACT at fc/weights_1 has negative values"):
        PACT(1).quantize(jnp.asarray(X), WEIGHT)
    with pytest.raises(ValueError, match=r"PACT.alpha must be positive"):
        PACT(4, 0.0)
    with pytest.raises(ValueError, match=r"PACT.alpha at fc/weights_1 has shape \(3,\)"):
        PACT(4, jnp.ones(3)).quantize(jnp.asarray(X), WEIGHT)
