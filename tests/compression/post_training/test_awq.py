"""AWQ and `Scaled`: the search against a grid by hand, folding, and exact reproduction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression import (
    Grouped,
    Int,
    LayerQuantization,
    Scaled,
    Tensor,
    Uniform,
    awq,
    fake_quantize,
    quantized,
)
from jaxeff.core import functional

TENSOR = Tensor("fc", "weights_1", "weight", 2, None, lambda: (1,), find_summed=lambda: (0,))


def linear(params, x):
    return x @ params["fc"]["kernel"]


def _problem(seed=0):
    """A few inputs are much larger than the others, as in language models."""
    rng = np.random.default_rng(seed)
    size = np.where(np.arange(16) % 5 == 0, 20.0, 1.0)
    x = rng.normal(size=(100, 16)) * size
    return {"fc": {"kernel": jnp.asarray(rng.normal(size=(16, 8)), jnp.float32)}}, jnp.asarray(
        x, jnp.float32
    )


@pytest.mark.slow
def test_the_search_by_hand():
    """Eqs. 4 and 5, on the same values of alpha."""
    params, x = _problem()
    w = params["fc"]["kernel"]
    size = np.abs(np.asarray(x, np.float64)).mean(0)
    errors = []
    for alpha in np.arange(11) / 10:
        s = size**alpha
        s = jnp.asarray(s / np.sqrt(s.max() * s.min()), jnp.float32)[:, None]
        scaled = w * s
        low, high = scaled.min(0, keepdims=True), scaled.max(0, keepdims=True)
        rounded = fake_quantize(scaled, 3, low, high) / s
        errors.append((float(jnp.square(x @ (rounded - w)).mean()), rounded))
    best, expected = min(errors, key=lambda e: e[0])
    assert best < 0.7 * errors[0][0]  # alpha = 0 is nearest rounding
    _, new, spec = awq(
        linear, params, x, {"fc": Int(3, activations=False, symmetric=False)}, points=10
    )
    np.testing.assert_allclose(new["fc"]["kernel"], expected, rtol=1e-5, atol=1e-6)
    assert isinstance(spec["fc"].weights, Scaled)
    assert spec["fc"].weights.scale.shape == (16, 1)
    np.testing.assert_array_equal(jax.jit(quantized(linear, spec))(new, x), linear(new, x))


@pytest.mark.slow
def test_large_layers_have_errors_that_are_numbers():
    """XLA gave NaN for them, by which no scale is better than none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(512, 576)) * np.exp(rng.normal(size=576))
    w = rng.normal(size=(576, 192)) / 8
    data, params = jnp.asarray(x, jnp.float32), {"fc": {"kernel": jnp.asarray(w, jnp.float32)}}
    four = {"fc": Int(4, activations=False, per="group", group=32)}
    _, new, _ = awq(linear, params, data, four, points=3)

    def error(kernel):
        return np.square(x @ (np.asarray(kernel, np.float64) - w)).mean()

    nearest = quantized(linear, four)(params, jnp.eye(576))
    assert error(new["fc"]["kernel"]) < 0.7 * error(nearest)


@pytest.mark.slow
def test_scales_move_into_the_layer_before():
    params, x = _problem()

    def f(params, x):
        hidden = jax.nn.relu(x @ params["a"]["kernel"] + params["a"]["bias"][None])
        return hidden @ params["b"]["kernel"]

    size = jnp.asarray([30.0, 1, 1, 1, 20, 1, 1, 1])
    params = {
        "a": {"kernel": params["fc"]["kernel"] * size[None], "bias": jnp.ones(8)},
        "b": {"kernel": jax.random.normal(jax.random.key(0), (8, 4))},
    }
    spec = {"b": Int(3, activations=False, symmetric=False)}
    _, new, started = awq(f, params, x, spec)
    assert isinstance(started["b"].weights, Uniform)
    ratio = params["a"]["bias"] / new["a"]["bias"]
    assert ratio[0] > ratio[1]
    np.testing.assert_allclose(new["a"]["kernel"] * ratio[None], params["a"]["kernel"], rtol=1e-5)
    np.testing.assert_array_equal(jax.jit(quantized(f, started))(new, x), f(new, x))
    exact = f(params, x)
    error = jnp.square(f(new, x) - exact).mean()
    assert error < jnp.square(jax.jit(quantized(f, spec))(params, x) - exact).mean()
    _, kept, with_scale = awq(f, params, x, spec, fold=False)
    assert isinstance(with_scale["b"].weights, Scaled)
    np.testing.assert_array_equal(kept["a"]["kernel"], params["a"]["kernel"])


@pytest.mark.slow
@pytest.mark.parametrize("fold", [True, False])
def test_better_than_nearest(trained, divergence, fold):
    f, params, x = trained
    for bits in (3, 4):
        spec = {"*:linear": Int(bits, 8, activations=False, symmetric=False)}
        _, new, started = awq(f, params, x, spec, fold=fold)
        assert divergence(new, started) < divergence(params, spec)
        np.testing.assert_array_equal(jax.jit(quantized(f, started))(new, x), f(new, x))


def test_by_group():
    params, x = _problem()
    setting = Int(3, per="group", group=4, activations=False, symmetric=False)
    _, new, spec = awq(linear, params, x, {"fc": setting}, points=10)
    np.testing.assert_array_equal(jax.jit(quantized(linear, spec))(new, x), linear(new, x))
    exact = linear(params, x)

    def error(params):
        return float(jnp.square(linear(params, x) - exact).mean())

    nearest = Grouped(Uniform(3), 4).quantize(params["fc"]["kernel"], TENSOR)
    assert error(new) < 0.8 * error({"fc": {"kernel": nearest}})


@pytest.mark.slow
def test_groups_of_a_convolution():
    model = nnx.Conv(4, 6, (3, 3), feature_group_count=2, rngs=nnx.Rngs(0))
    f, params = functional(model)
    x = jax.random.normal(jax.random.key(0), (4, 5, 5, 4)) * jnp.array([[[[1.0, 30, 2, 1]]]])
    spec = {"*:linear": Int(3, activations=False, symmetric=False)}
    _, new, started = awq(f, params, x, spec)
    (setting,) = started.values()
    assert setting.weights.scale.shape == (1, 1, 2, 6)
    np.testing.assert_array_equal(jax.jit(quantized(f, started))(new, x), f(new, x))
    exact = f(params, x)
    error = jnp.square(f(new, x) - exact).mean()
    assert error < jnp.square(jax.jit(quantized(f, spec))(params, x) - exact).mean()


@pytest.mark.slow
def test_scaled():
    x = jax.random.normal(jax.random.key(0), (6, 4))
    scale = jnp.arange(1.0, 7.0)[:, None]
    method = Scaled(Uniform(3), scale)
    started = method.start(x, TENSOR)
    y = started.quantize(x, TENSOR)
    low, high = (x * scale).min(0, keepdims=True), (x * scale).max(0, keepdims=True)
    np.testing.assert_allclose(y, fake_quantize(x * scale, 3, low, high) / scale, rtol=1e-6)
    np.testing.assert_array_equal(started.quantize(y, TENSOR), y)
    np.testing.assert_array_equal(jax.jit(lambda s, x: s.quantize(x, TENSOR))(started, x), y)
    gradient = jax.grad(lambda x: started.quantize(x, TENSOR).sum())(x)
    np.testing.assert_allclose(gradient, jnp.ones_like(x), rtol=1e-6)
    swept = jax.vmap(lambda s: Scaled(Uniform(3), s).quantize(x, TENSOR))(
        jnp.stack([scale, 2 * scale])
    )
    np.testing.assert_allclose(swept[0], y, rtol=1e-6)
    # Beside the codes and their grids a float for each scale.
    assert method.storage((6, 4), TENSOR) == Uniform(3).storage((6, 4), TENSOR) + 6 * 32
    assert method.width == 3
    narrow = started.quantize(x.astype(jnp.bfloat16), TENSOR)
    assert narrow.dtype == jnp.bfloat16
    zeros = jnp.zeros((6, 4))
    np.testing.assert_array_equal(method.quantize(zeros, TENSOR), zeros)


def test_mistakes_are_named():
    params, x = _problem()
    with pytest.raises(ValueError, match="no weights to quantize"):
        awq(linear, params, x, {"fc": Int(4, weights=False)})
    with pytest.raises(ValueError, match="awq: the weights of 'fc' hold NaN"):
        awq(
            linear,
            {"fc": {"kernel": jnp.full((16, 8), jnp.nan)}},
            x,
            {"fc": Int(4, symmetric=False)},
        )
    with pytest.raises(TypeError, match=r"Scaled.method must be a quantizer"):
        Scaled(3, 1.0)
    with pytest.raises(ValueError, match=r"Scaled.scale must be positive"):
        Scaled(Uniform(3), 0.0)
    wrong = {"fc": LayerQuantization(Scaled(Uniform(3), jnp.ones((5, 1))))}
    with pytest.raises(ValueError, match=r"Scaled.scale at 'fc' has shape \(5, 1\)"):
        jax.jit(quantized(linear, wrong))(params, x)
