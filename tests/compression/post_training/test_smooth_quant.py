"""SmoothQuant: eq. 4 by hand, equal outputs, what folds into norms and layers, and what is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.compression import Int, Scaled, Uniform, calibrate, gptq, quantized, smooth_quant
from jaxeff.contrib import Decoder, DecoderConfig

SPEC = {"fc": Int(8, symmetric=False, per="tensor")}
SIZE = jnp.where(jnp.arange(16) == 5, 100.0, 1.0)


def linear(params, x):
    return x @ params["fc"]["kernel"]


def _problem():
    """A channel is much larger than the others, as in language models."""
    a, b = jax.random.split(jax.random.key(0))
    return {"fc": {"kernel": jax.random.normal(a, (16, 8))}}, jax.random.normal(
        b, (100, 16)
    ) * SIZE[None]


def _error(f, params, spec, x, exact):
    return float(jnp.square(quantized(f, spec)(params, x) - exact).mean())


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8])
def test_the_scale_by_hand(alpha):
    params, x = _problem()
    _, new, spec = smooth_quant(linear, params, x, SPEC, alpha=alpha)
    w = params["fc"]["kernel"]
    scale = jnp.abs(x).max(0) ** alpha / jnp.abs(w).max(1) ** (1 - alpha)
    setting = spec["fc"]
    np.testing.assert_allclose(setting.weights.scale, scale[:, None], rtol=1e-5)
    np.testing.assert_allclose(setting.activations.scale, 1 / scale[None], rtol=1e-5)
    np.testing.assert_array_equal(new["fc"]["kernel"], w)
    # What is multiplied are the rounded x / s and s W.
    by_hand = quantized(linear, SPEC)({"fc": {"kernel": w * scale[:, None]}}, x / scale[None])
    np.testing.assert_allclose(quantized(linear, spec)(new, x), by_hand, rtol=1e-4, atol=1e-3)
    exact = linear(params, x)
    better = 0.5 if alpha else 1.0
    assert _error(linear, new, spec, x, exact) < better * _error(linear, params, SPEC, x, exact)


def _normed(params, x):
    centred = x - x.mean(-1, keepdims=True)
    h = centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-6)
    h = h * params["norm"]["scale"][None] + params["norm"]["bias"][None]
    left, right = (h @ params[name]["kernel"] for name in ("left", "right"))
    return jax.nn.relu(left) * right


def _norm_params():
    keys = jax.random.split(jax.random.key(1), 3)
    return {
        "norm": {"scale": SIZE, "bias": 0.3 * SIZE * jax.random.normal(keys[0], (16,))},
        "left": {"kernel": jax.random.normal(keys[1], (16, 8))},
        "right": {"kernel": jax.random.normal(keys[2], (16, 8))},
    }


@pytest.mark.slow
def test_scales_go_into_a_norm_that_several_layers_read():
    params, x = _norm_params(), jax.random.normal(jax.random.key(2), (64, 16))
    spec = {
        "left": Int(6, per="tensor", symmetric=False),
        "right": Int(6, per="tensor", symmetric=False),
    }
    _, new, started = smooth_quant(_normed, params, x, spec)
    exact = _normed(params, x)
    np.testing.assert_allclose(_normed(new, x), exact, rtol=1e-4, atol=1e-3)
    scale = params["norm"]["scale"] / new["norm"]["scale"]
    for name in ("left", "right"):
        assert isinstance(started[name].weights, Uniform)
        np.testing.assert_allclose(
            new[name]["kernel"], params[name]["kernel"] * scale[:, None], rtol=1e-5
        )
    np.testing.assert_allclose(new["norm"]["bias"], params["norm"]["bias"] / scale, rtol=1e-5)
    # Eq. 4 with the larger weights of both layers.
    h = jnp.abs(x - x.mean(-1, keepdims=True))
    h = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(jnp.square(h).mean(-1, keepdims=True) + 1e-6)
    h = jnp.abs(h * params["norm"]["scale"][None] + params["norm"]["bias"][None]).max(0)
    both = jnp.concatenate([params[name]["kernel"] for name in ("left", "right")], 1)
    np.testing.assert_allclose(scale, jnp.sqrt(h / jnp.abs(both).max(1)), rtol=1e-4)
    assert _error(_normed, new, started, x, exact) < 0.5 * _error(_normed, params, spec, x, exact)
    # One layer alone is quantized: the other is scaled with it.
    _, one, _ = smooth_quant(_normed, params, x, {"left": spec["left"]})
    np.testing.assert_allclose(_normed(one, x), exact, rtol=1e-4, atol=1e-3)
    _, kept, unfolded = smooth_quant(_normed, params, x, spec, fold=False)
    assert isinstance(unfolded["left"].weights, Scaled)
    np.testing.assert_array_equal(kept["norm"]["scale"], params["norm"]["scale"])


@pytest.mark.slow
def test_a_norm_that_something_else_reads_stays():
    def f(params, x):
        h = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
        h = h * params["norm"]["scale"][None]
        return h @ params["left"]["kernel"] + jnp.sum(h)

    params, x = _norm_params(), jax.random.normal(jax.random.key(2), (64, 16))
    _, new, spec = smooth_quant(f, params, x, {"left": Int(8, symmetric=False)})
    np.testing.assert_array_equal(new["norm"]["scale"], params["norm"]["scale"])
    assert isinstance(spec["left"].activations, Scaled)


@pytest.mark.slow
def test_a_decoder_folds_and_goes_on():
    config = DecoderConfig(vocabulary=30, width=16, hidden=24, depth=1, heads=4, key_heads=2)
    f, params = jaxeff.functional(Decoder(config, rngs=nnx.Rngs(0)))
    params["blocks"]["0"]["norm1"]["scale"] = SIZE
    x = jax.random.randint(jax.random.key(0), (4, 12), 0, 30)
    spec = {"blocks/*:linear": Int(8)}
    _, new, started = smooth_quant(f, params, x, spec)
    np.testing.assert_allclose(f(new, x), f(params, x), rtol=1e-3, atol=1e-3)
    block = new["blocks"]["0"]
    assert (jnp.abs(block["norm1"]["scale"] - SIZE) > 1e-3).any()
    assert isinstance(started["blocks/0/attn/query"].weights, Uniform)
    assert isinstance(started["blocks/0/up"].activations, Uniform)
    assert isinstance(started["blocks/0/down"].activations, Scaled)  # a product is no norm
    ranged = calibrate(f, new, [x], {**spec, "blocks/*/down": None, "blocks/*/out": None}).spec
    assert jnp.isfinite(quantized(f, ranged)(new, x)).all()
    _, fitted, by_gptq = gptq(f, new, x, started)
    np.testing.assert_allclose(quantized(f, by_gptq)(fitted, x), f(params, x), rtol=1, atol=0.5)


@pytest.mark.slow
def test_scales_of_a_convolution_and_of_layers_before():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv1 = nnx.Conv(3, 4, (3, 3), rngs=rngs)
            self.conv2 = nnx.Conv(4, 5, (3, 3), strides=2, rngs=rngs)

        def __call__(self, x):
            return self.conv2(nnx.relu(self.conv1(x)))

    f, params = jaxeff.functional(Net(nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(0), (6, 5, 5, 3)) * jnp.array([[[[30.0, 1, 0.1]]]])
    spec = {"*:linear": Int(8, per="tensor", symmetric=False)}
    _, new, started = smooth_quant(f, params, x, spec)
    np.testing.assert_allclose(f(new, x), f(params, x), rtol=1e-3, atol=1e-2)
    assert started["conv1"].activations.scale.shape == (1, 1, 1, 3)
    assert isinstance(started["conv2"].activations, Uniform)
    assert (new["conv1"]["bias"] == 0).all()
    exact = f(params, x)
    assert _error(f, new, started, x, exact) < _error(f, params, spec, x, exact)


def test_mistakes_are_named():
    params, x = _problem()
    with pytest.raises(ValueError, match="found nothing to scale"):
        smooth_quant(lambda p, x: x, params, x, {})
    ranged = calibrate(linear, params, [x], SPEC).spec
    with pytest.raises(ValueError, match="'fc' has a range already"):
        smooth_quant(linear, params, x, ranged)
    with pytest.raises(ValueError, match="smooth_quant: the weights of 'fc' hold NaN"):
        smooth_quant(linear, {"fc": {"kernel": jnp.full((16, 8), jnp.nan)}}, x, SPEC)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_biases_of_narrow_floats_are_scaled_with_their_channels(dtype):
    def f(p, x):
        return jax.nn.relu(x @ p["w"] + p["b"][None]) @ p["v"]

    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"w": (16, 300), "b": (300,), "v": (300, 4)}
    params = {
        name: jax.random.normal(k, shape).astype(dtype)
        for k, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    x = jax.random.normal(keys[3], (40, 16)).astype(dtype)
    _, new, spec = smooth_quant(f, params, x, {"*": Int(8, symmetric=False)})
    assert not isinstance(spec["v"].weights, Scaled)
    assert not jnp.array_equal(new["b"], params["b"])
    exact = np.asarray(f(params, x), np.float32)
    difference = np.asarray(f(new, x), np.float32) - exact
    assert np.abs(difference).max() <= 4 * float(jnp.finfo(dtype).eps) * np.abs(exact).max()


def test_a_star_may_match_what_is_not_quantized():
    params, x = _problem()

    def f(p, x, mask):
        return linear(p, x * mask)

    args = (x, jnp.ones_like(x))
    _, new, spec = smooth_quant(f, params, args, {"*": Int(8, symmetric=False)})
    assert list(spec) == ["fc"]
    assert quantized(f, spec)(new, *args).shape == (100, 8)
