"""`DoReFa`: the paper's three quantizers, and the gradients that they let through."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import DoReFa, LayerQuantization, Tensor, quantized
from jaxeff.nn import small_classifier
from tests.compression.tensors import WEIGHT

DATA = Tensor("fc", "input_0", "activation", 2, jax.random.key(3))
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)


def q_k(r, bits):
    return np.round((2**bits - 1) * r) / (2**bits - 1)  # eq. 5


def gradient(q, tensor, x=X):
    return jax.grad(lambda x: jnp.vdot(G, q.quantize(x, tensor)))(jnp.asarray(x))


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(DoReFa(1))
    check_method(DoReFa(jnp.array(3.0)))
    check_method(DoReFa(3, gradient_bits=4), DATA)


@pytest.mark.parametrize("bits", [2, 3, 8])
def test_weights_of_several_bits(bits):
    tanh = np.tanh(X.astype(np.float64))
    top, at = np.abs(tanh).max(), np.abs(tanh).argmax()
    expected = 2 * q_k(tanh / (2 * top) + 0.5, bits) - 1  # eq. 9
    ours = DoReFa(bits).quantize(jnp.asarray(X), WEIGHT)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    assert len(np.unique(ours)) <= 2**bits
    # The derivative of tanh(w) / max |tanh(w)|, the maximum's own included.
    slope = G * (1 - tanh**2) / top
    share = (G * tanh).sum() / top**2 * np.sign(tanh.flat[at]) * (1 - tanh.flat[at] ** 2)
    slope.flat[at] -= share
    np.testing.assert_allclose(gradient(DoReFa(bits), WEIGHT), slope, atol=2e-6)


def test_weights_of_one_bit():
    expected = np.where(X >= 0, 1, -1) * np.abs(X).mean()  # eq. 7
    np.testing.assert_allclose(DoReFa(1).quantize(jnp.asarray(X), WEIGHT), expected, rtol=1e-6)
    np.testing.assert_array_equal(gradient(DoReFa(1), WEIGHT), G)


@pytest.mark.parametrize("bits", [1, 2, 6])
def test_activations(bits):
    clipped = np.clip(X, 0, 1)
    y = DoReFa(bits).quantize(jnp.asarray(X), DATA)
    np.testing.assert_allclose(y, q_k(clipped, bits), atol=1e-6)  # eq. 11
    np.testing.assert_array_equal(gradient(DoReFa(bits), DATA), G * (clipped == X))
    np.testing.assert_array_equal(DoReFa(bits).quantize(y, DATA), y)


def test_the_error_is_that_of_a_uniform_grid():
    x = jnp.linspace(0, 1, 20001)[:, None]
    for bits in (3, 6):
        error = jnp.mean((DoReFa(bits).quantize(x, DATA) - x) ** 2)
        np.testing.assert_allclose(error, 1 / (2**bits - 1) ** 2 / 12, rtol=0.01)


@pytest.mark.slow
def test_gradients_are_of_few_values_and_right_on_average():
    bits, n = 2, 3000
    q = DoReFa(8, gradient_bits=bits)
    inner = jnp.full((6, 4), 0.5)

    def back(key):
        tensor = Tensor("fc", "input_0", "activation", 2, key)
        return jax.grad(lambda x: jnp.vdot(G, q.quantize(x, tensor)))(inner)

    drawn = jax.vmap(back)(jax.random.split(jax.random.key(0), n))
    # eq. 12: codes of 2 m (c / (2^g - 1) - 1/2), with m of each example.
    top = np.abs(G).max(1, keepdims=True)
    codes = (np.asarray(drawn) / (2 * top) + 0.5) * (2**bits - 1)
    np.testing.assert_allclose(codes, np.round(codes), atol=1e-5)
    assert codes.min() > -0.5
    assert codes.max() < 2**bits - 0.5
    error = np.asarray(drawn).std(0) / np.sqrt(n)
    assert (np.abs(drawn.mean(0) - G) <= 4 * error + 1e-6).all()
    # Nothing flows back as nothing.
    zero = jax.grad(lambda x: 0 * q.quantize(x, DATA).sum())(inner)
    np.testing.assert_array_equal(zero, 0)


@pytest.mark.slow
def test_in_a_model():
    f, params, (x, y) = small_classifier()
    spec = {"*:linear": LayerQuantization(DoReFa(2), DoReFa(4, gradient_bits=6))}
    with pytest.raises(ValueError, match="keyed=True"):
        quantized(f, spec)(params, x)

    def loss(key, params):
        logits = quantized(f, spec, keyed=True)(key, params, x)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(y)), y])

    keys = jax.random.split(jax.random.key(0))
    leaves = jax.tree.leaves(jax.jit(jax.vmap(jax.grad(loss, 1), (0, None)))(keys, params))
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert any((leaf[0] != leaf[1]).any() for leaf in leaves)


def test_bits_of_an_array():
    assert DoReFa(1).storage((6, 4), WEIGHT) == 24 + 32
    assert DoReFa(3).storage((6, 4), WEIGHT) == 72
    assert DoReFa(jnp.array(1.0)).storage((6, 4), WEIGHT) == 24 + 32
    assert DoReFa(1).storage((6, 4), DATA) == 24
    # An array of zeros is its smallest positive value.
    np.testing.assert_allclose(DoReFa(3).quantize(jnp.zeros((2, 2)), WEIGHT), 1 / 7, rtol=1e-6)


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"DoReFa.gradient_bits must be between 1 and 16"):
        DoReFa(2, 0)
    with pytest.raises(TypeError, match=r"DoReFa.bits must be an integer"):
        DoReFa(2.5)
