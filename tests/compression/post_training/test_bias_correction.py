"""Bias correction: means are kept, layer by layer, for biases of any shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression import Int, correct_biases, gptq, quantized
from jaxeff.core import functional


@pytest.mark.slow
def test_one_layer_in_closed_form():
    """Eq. 17: E[e] = e_W E[x] is taken off the bias."""

    def f(params, x):
        return x @ params["fc"]["kernel"] + params["fc"]["bias"][None]

    kernel = jax.random.normal(jax.random.key(0), (6, 4))
    params = {"fc": {"kernel": kernel, "bias": jnp.arange(4.0)}}
    x = 1 + jax.random.normal(jax.random.key(1), (50, 6))
    spec = {"fc": Int(3, activations=False, symmetric=False)}
    rounded = quantized(
        lambda p, x: x @ p, {"*:linear": Int(3, activations=False, symmetric=False)}
    )
    new = correct_biases(f, params, x, spec).params
    error = rounded(kernel, jnp.eye(6)) - kernel
    expected = params["fc"]["bias"] - x.mean(0) @ error
    np.testing.assert_allclose(new["fc"]["bias"], expected, rtol=1e-5, atol=1e-5)
    assert new["fc"]["kernel"] is kernel


class Model(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.plain = nnx.Conv(4, 4, (3, 3), use_bias=False, rngs=rngs)
        self.heads = nnx.LinearGeneral(4, (2, 3), rngs=rngs)

    def __call__(self, x):
        return self.heads(nnx.relu(self.plain(nnx.relu(self.conv(x)))))


@pytest.mark.slow
def test_means_of_every_layer_are_kept():
    f, params = functional(Model(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (8, 6, 6, 1))
    spec = {"*:linear": Int(3, symmetric=False)}
    new = correct_biases(f, params, x, spec).params
    # The last layer's bias has an entry for each of the heads' outputs.
    error = jax.jit(quantized(f, spec))(new, x) - f(params, x)
    np.testing.assert_allclose(error.mean((0, 1, 2)), jnp.zeros((2, 3)), atol=1e-5)
    before = jax.jit(quantized(f, spec))(params, x) - f(params, x)
    assert jnp.abs(before.mean((0, 1, 2))).max() > 1e-2
    assert jnp.square(error).mean() < jnp.square(before).mean()
    np.testing.assert_array_equal(new["plain"]["kernel"], params["plain"]["kernel"])


@pytest.mark.slow
def test_a_trained_classifier(trained, divergence):
    f, params, x = trained
    spec = {"*:linear": Int(3, 8, per="tensor", symmetric=False)}
    assert divergence(correct_biases(f, params, x, spec).params, spec) < divergence(params, spec)
    # After GPTQ, on the spec that it returns.
    _, new, started = gptq(f, params, x, spec)
    both = correct_biases(f, new, x, started).params
    np.testing.assert_array_equal(both["fc1"]["kernel"], new["fc1"]["kernel"])


def test_mistakes_are_named():
    def f(params, x):
        return x @ params["fc"]["kernel"]

    params = {"fc": {"kernel": jnp.eye(3)}}
    with pytest.raises(ValueError, match="no bias of its own in any layer of the spec: fc"):
        correct_biases(f, params, jnp.ones((2, 3)), {"fc": Int(4, symmetric=False)})
    with pytest.raises(ValueError, match="correct_biases: batch is empty"):
        correct_biases(f, params, jnp.ones((0, 3)), {"fc": Int(4, symmetric=False)})
