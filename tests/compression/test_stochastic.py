"""`Stochastic`: unbiased, of known variance, on the grid."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Stochastic, Tensor, quantized
from jaxeff.nn import small_classifier

WEIGHT = Tensor("fc", "weights_1", "weight", 2, jax.random.key(1), lambda: (1,))
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(Stochastic(3))
    check_method(Stochastic(jnp.array(4.0), symmetric=True, per="tensor"))


def test_draws_are_the_neighbours_and_right_on_average():
    n = 4000
    q = Stochastic(3, symmetric=True, per="tensor")

    def draw(key):
        return q.quantize(jnp.asarray(X), dataclasses.replace(WEIGHT, key=key))

    drawn = np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(0), n)), np.float64)
    step = np.abs(X).max() / 3
    share = X / step - np.floor(X / step)
    codes = drawn / step
    np.testing.assert_allclose(codes, np.round(codes), atol=1e-5)
    assert (np.abs(codes - X / step) < 1 + 1e-5).all()
    # Gupta et al., section 3: up with probability (x - floor(x)) / step.
    std = step * np.sqrt(share * (1 - share))
    assert (np.abs(drawn.mean(0) - X) <= 4 * std / np.sqrt(n) + 1e-6).all()
    # The variance of n draws of two values has the standard error std |1 - 2p| step / sqrt(n) ...
    spread = step**2 * np.sqrt(share * (1 - share)) * np.abs(1 - 2 * share) / np.sqrt(n)
    # ... and one of order 1/n where p is a half.
    assert (np.abs(drawn.var(0) - std**2) <= 4 * spread + 20 * step**2 / n).all()


def test_the_error_over_bits():
    x = jnp.linspace(-1, 1, 20001)[:, None]
    for bits in (3, 6):
        q = Stochastic(bits, symmetric=True, range=(-1.0, 1.0), per="tensor")
        y = q.quantize(x, WEIGHT)
        assert len(np.unique(y)) == 2**bits - 1
        np.testing.assert_array_equal(q.quantize(y, WEIGHT), y)
        step = 2 / (2**bits - 2)
        error = np.asarray((y - x) ** 2)
        se = error.std() / np.sqrt(error.size)
        assert abs(error.mean() - step**2 / 6) < 4 * se


def test_the_gradient_is_one():
    grads = jax.grad(lambda x: Stochastic(2).quantize(x, WEIGHT).sum())(jnp.asarray(X))
    np.testing.assert_array_equal(grads, 1)


@pytest.mark.slow
def test_in_a_model():
    f, params, (x, _) = small_classifier()
    spec = {"*:linear": Stochastic(3)}
    with pytest.raises(ValueError, match="Stochastic at 'conv1' draws random numbers"):
        quantized(f, spec)(params, x)
    g = jax.jit(quantized(f, spec, keyed=True))
    one, same, other = (g(jax.random.key(i), params, x) for i in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"Stochastic.bits must be between 1 and 16"):
        Stochastic(17)
    with pytest.raises(ValueError, match=r"Stochastic.range\[1\] must be finite"):
        Stochastic(4, range=(0.0, np.nan))
