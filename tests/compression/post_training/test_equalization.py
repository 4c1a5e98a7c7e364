"""Cross-layer equalization: pairs found on the program, equal ranges, the same function."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression import Int, equalize, quantized
from jaxeff.compression.post_training._channels import pairs
from jaxeff.core import functional
from jaxeff.nn import LinenLeNet5
from jaxeff.nn.layers import avg_pool
from jaxeff.program import trace


class Separable(nnx.Module):
    """Depthwise, pointwise, grouped, pooled, flattened, with heads."""

    def __init__(self, act, *, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.depthwise = nnx.Conv(4, 4, (3, 3), feature_group_count=4, strides=2, rngs=rngs)
        self.pointwise = nnx.Conv(4, 12, (1, 1), use_bias=False, rngs=rngs)
        self.grouped = nnx.Conv(12, 6, (3, 3), feature_group_count=3, rngs=rngs)
        self.heads = nnx.LinearGeneral((2, 2, 6), (2, 5), axis=(1, 2, 3), rngs=rngs)
        self.out = nnx.Linear(10, 3, rngs=rngs)
        self.act = act

    def __call__(self, x):
        x = self.act(self.depthwise(self.act(self.conv(x))))
        x = nnx.leaky_relu(self.grouped(self.act(self.pointwise(x))))
        x = avg_pool(x, (2, 2), strides=(2, 2))
        x = self.act(self.heads(x))
        return self.out(x.reshape(x.shape[0], -1))


NAMES = ["conv", "depthwise", "pointwise", "grouped", "heads", "out"]


def _pairs(f, params, x):
    found = pairs(trace(f, params, x), jax.tree.leaves((params, x)))
    return {(p.first.at.layer.site, p.second.layer.site): p for p in found}


@pytest.mark.slow
def test_pairs_and_their_channels():
    f, params = functional(Separable(nnx.relu, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
    found = _pairs(f, params, x)
    assert list(found) == list(itertools.pairwise(NAMES))
    flat = found["grouped", "heads"].channels
    np.testing.assert_array_equal(flat, np.tile(np.arange(6), 4)[None])
    depthwise = found["conv", "depthwise"].channels
    np.testing.assert_array_equal(depthwise, np.repeat(np.arange(4), 9).reshape(4, 9))
    grouped = found["pointwise", "grouped"].channels
    np.testing.assert_array_equal(grouped, np.repeat(np.arange(12), 9).reshape(3, 36))
    np.testing.assert_array_equal(found["heads", "out"].channels, np.arange(10)[None])


@pytest.mark.parametrize("act", [jax.nn.gelu, jax.nn.sigmoid, jax.nn.relu6, jax.nn.softplus])
def test_what_is_not_homogeneous_makes_no_pair(act):
    def f(params, x):
        return act(x @ params["a"]) @ params["b"]

    params = {"a": jnp.ones((3, 20)), "b": jnp.ones((20, 2))}
    assert not _pairs(f, params, jnp.ones((2, 3)))
    params = jax.tree.map(lambda a: a * 2, params)
    jax.tree.map(
        np.testing.assert_array_equal, equalize(f, params, jnp.ones((2, 3))).params, params
    )


def test_what_is_read_twice_or_mixes_channels_makes_no_pair():
    params = {"a": jnp.eye(4), "b": jnp.eye(4)}
    x = jnp.ones((2, 4))
    functions = (
        lambda p, x: (h := x @ p["a"]) @ p["b"] + h,
        lambda p, x: jnp.cumsum(x @ p["a"], 1) @ p["b"],
        lambda p, x: (x @ p["a"] + 1) @ p["b"],
        lambda p, x: (x @ p["a"]) @ p["a"],
        lambda p, x: (x @ p["a"]) @ p["b"] + p["a"].sum(),
    )
    for f in functions:
        assert not _pairs(f, params, x)
    assert _pairs(lambda p, x: jnp.abs(x @ p["a"])[:, ::-1] @ p["b"], params, x)


@pytest.mark.slow
def test_ranges_become_equal_and_outputs_stay():
    f, params = functional(Separable(nnx.relu, rngs=nnx.Rngs(0)))
    scales = 10.0 ** jnp.linspace(-2, 1, 4)
    params["depthwise"]["kernel"] = params["depthwise"]["kernel"] * scales.reshape(1, 1, 1, 4)
    pointwise = params["pointwise"]["kernel"] / scales.reshape(1, 1, 4, 1)
    params["pointwise"]["kernel"] = pointwise
    params["conv"]["bias"] = jnp.linspace(-1, 1, 4)
    x = jax.random.normal(jax.random.key(0), (2, 8, 8, 1))
    new = equalize(f, params, x).params
    exact = f(params, x)
    np.testing.assert_allclose(f(new, x), exact, atol=1e-5 * float(jnp.abs(exact).max()))
    first = jnp.abs(new["depthwise"]["kernel"]).max((0, 1, 2))
    second = jnp.abs(new["pointwise"]["kernel"]).max((0, 1, 3))
    np.testing.assert_allclose(first, second, rtol=1e-2)
    spec = {"*:linear": Int(6, activations=False, per="tensor", symmetric=False)}
    before = jnp.square(jax.jit(quantized(f, spec))(params, x) - exact).mean()
    after = jnp.square(jax.jit(quantized(f, spec))(new, x) - exact).mean()
    assert after < 0.5 * before


def test_one_pair_in_closed_form():
    """Eq. 11: s = sqrt(r1 r2) / r2; the first layer is divided by it. A dead channel stays."""

    def f(params, x):
        return jax.nn.relu(x @ params["a"] + params["c"][None]) @ params["b"]

    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(5, 4)), rng.normal(size=(4, 3)), rng.normal(size=4)
    b[2] = 0
    params = {n: jnp.asarray(v, jnp.float32) for n, v in zip("abc", (a, b, c), strict=True)}
    new = equalize(f, params, jnp.ones((2, 5))).params
    r1, r2 = np.abs(a).max(0), np.abs(b).max(1)
    s = np.where(r2 > 0, np.sqrt(r1 * r2) / np.where(r2 > 0, r2, 1), 1)
    np.testing.assert_allclose(new["a"], a / s, rtol=1e-5)
    np.testing.assert_allclose(new["c"], c / s, rtol=1e-5)
    np.testing.assert_allclose(new["b"], b * s[:, None], rtol=1e-5)


@pytest.mark.slow
def test_linen_and_bfloat16():
    model = LinenLeNet5()
    x = jax.random.normal(jax.random.key(1), (1, 28, 28, 1))
    f, params = functional(model, model.init(jax.random.key(0), x))
    expected = [("conv1", "conv2"), ("conv2", "fc1"), ("fc1", "fc2"), ("fc2", "fc3")]
    assert list(_pairs(f, params, x)) == expected

    def g(params, x):
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    wide = {
        "a": jax.random.normal(jax.random.key(2), (3, 300), jnp.bfloat16),
        "b": jax.random.normal(jax.random.key(3), (300, 2), jnp.bfloat16),
    }
    (pair,) = _pairs(g, wide, jnp.ones((2, 3), jnp.bfloat16)).values()
    np.testing.assert_array_equal(pair.channels, np.arange(300)[None])


def test_a_weight_that_is_not_finite_is_named():
    def f(params, x):
        return (x @ params["a"]) @ params["b"]

    params = {"a": jnp.full((3, 3), jnp.nan), "b": jnp.eye(3)}
    with pytest.raises(ValueError, match="weight of 'a' isn't finite"):
        equalize(f, params, jnp.ones((2, 3)))
