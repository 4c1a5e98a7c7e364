"""A square weight that is read as it lies and transposed: right, or refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.compression import Int, adaround, awq, calibrate, gptq, round_weights

KEY = jax.random.key(0)
PARAMS = {"w": jax.random.normal(KEY, (8, 8)) * jnp.exp(jax.random.normal(KEY, (8, 1)))}
X = jax.random.normal(jax.random.key(1), (32, 8))


def tied(params, x):
    return jnp.tanh(x @ params["w"]) @ params["w"].T


def spec(per, **settings):
    return {"*:linear": Int(4, per=per, **settings)}


@pytest.mark.parametrize("method", [round_weights, gptq, adaround])
def test_a_rounded_tied_weight_is_on_the_grid_of_both_uses(method):
    f, params, settings = method(tied, PARAMS, X, spec("tensor", activations=False))
    np.testing.assert_array_equal(f(params, X), jaxeff.quantized(f, settings)(params, X))
    # By channels there is no such weight: the columns of one use are the rows of the other.
    with pytest.raises(ValueError, match=r"'w' reads w in another layout.* without channels"):
        method(tied, PARAMS, X, spec("channel", activations=False))
    twice = lambda p, x: jnp.tanh(x @ p["w"]) @ p["w"]  # noqa: E731
    f, params, settings = method(twice, PARAMS, X, spec("channel", activations=False))
    np.testing.assert_array_equal(f(params, X), jaxeff.quantized(f, settings)(params, X))


def test_each_use_is_rounded_by_its_own_channels():
    settings = spec("channel", activations=False)
    one = jaxeff.quantized(lambda p, x: x @ p["w"], settings)
    first, second = (one({"w": w}, jnp.eye(8)) for w in (PARAMS["w"], PARAMS["w"].T))
    expected = jnp.tanh(X @ first) @ second
    outputs = jaxeff.quantized(tied, settings)(PARAMS, X)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)


def test_codes_of_a_tied_weight_are_those_of_its_uses():
    settings = calibrate(tied, PARAMS, [X], spec("channel", activation_bits=8)).spec
    g = jaxeff.integer(tied, settings)
    want = jaxeff.quantized(tied, settings)(PARAMS, X)
    np.testing.assert_allclose(g(g.convert(PARAMS, X), X), want, atol=1e-5 * np.abs(want).max())


def test_scaled_channels_of_a_tied_weight_are_refused():
    with pytest.raises(ValueError, match="read by w#1 too"):
        awq(tied, PARAMS, X, spec("channel", activations=False))
