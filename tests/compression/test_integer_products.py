"""`integer`: products over any axes, convolutions of sequences and in other layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from numpy.lib.stride_tricks import sliding_window_view

import jaxeff
from jaxeff.compression import Int, calibrate, fold_batch_norm, integer, quantized
from jaxeff.compression.integers import q_conv2d
from jaxeff.core import functional
from jaxeff.nn.layers import Block

pytestmark = pytest.mark.promotes("rank")
WEIGHTS = Int(8)


def normal(*shape):
    return jax.random.normal(jax.random.fold_in(jax.random.key(0), sum(shape)), shape)


def heads(x):
    return x.reshape(2, 5, 2, 4)


X = normal(2, 5, 8)
PRODUCTS = {
    "heads": (
        lambda p, x: jnp.einsum("bsd,dhk->bshk", x, p["w"]) + p["b"],
        {"w": normal(8, 2, 3), "b": normal(2, 3)},
    ),
    "heads in front": (
        lambda p, x: jnp.einsum("bsd,hdk->bhsk", x, p["w"]) + p["b"][:, None],
        {"w": normal(2, 8, 3), "b": normal(2, 3)},
    ),
    "over heads, with a shortcut": (
        lambda p, x: x + jnp.einsum("bshk,hkd->bsd", heads(x), p["w"]),
        {"w": normal(2, 4, 8)},
    ),
    "a weight for each head": (
        lambda p, x: jnp.einsum("bshk,hkd->bshd", heads(x), p["w"]) + p["b"],
        {"w": normal(2, 4, 7), "b": normal(2, 7)},
    ),
    "a batch norm of heads": (
        lambda p, x: jax.nn.relu(jnp.einsum("bsd,dhk->bshk", x, p["w"]) * p["g"] + p["a"]),
        {"w": normal(8, 2, 3), "g": normal(3), "a": normal(3)},
    ),
    "the weight first": (lambda p, x: p["w"] @ x[0, 0], {"w": normal(6, 8)}),
    "a weight for each position": (
        lambda p, x: jnp.einsum("bsd,ds->bs", x, p["w"]),
        {"w": normal(8, 5)},
    ),
    "to a number": (lambda p, x: x @ p["w"], {"w": normal(8)}),
    "positions after it": (
        lambda p, x: x @ p["w"] + p["b"],
        {"w": normal(8, 6), "b": normal(5, 6)},
    ),
    "a bias of split outputs": (
        lambda p, x: (x @ p["w"]).reshape(2, 5, 2, 3) + p["b"],
        {"w": normal(8, 6), "b": normal(2, 3)},
    ),
}
LAYERS = {
    "conv1d": lambda: nnx.Conv(8, 6, (3,), rngs=nnx.Rngs(0)),
    "strided": lambda: nnx.Conv(
        8, 6, (3,), strides=2, kernel_dilation=2, feature_group_count=2, rngs=nnx.Rngs(0)
    ),
    "causal": lambda: nnx.Conv(
        8, 8, (4,), padding="CAUSAL", feature_group_count=8, rngs=nnx.Rngs(0)
    ),
    "transposed": lambda: nnx.ConvTranspose(8, 6, (4,), strides=(2,), rngs=nnx.Rngs(0)),
    "attention": lambda: nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0)),
}
IMAGES = {
    "transposed": lambda p, x: jax.nn.relu(
        lax.conv_general_dilated(
            x, p["w"], (1, 1), ((1, 2), (2, 0)), (2, 3), dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        * p["b"]
        + 1
    ).mean((1, 2)),
    "channels first": lambda p, x: (
        lax.conv_general_dilated(
            x.transpose(0, 3, 1, 2),
            p["w"],
            (1, 1),
            "SAME",
            dimension_numbers=("NCHW", "HWIO", "NCHW"),
        )
        + p["b"][:, None, None]
    ),
}


def check(f, params, x, dynamic):
    spec = {"*:linear": WEIGHTS}
    spec = spec if dynamic else calibrate(f, params, [x], spec).spec
    g = integer(f, spec, dynamic=dynamic)
    codes = g.convert(params, x)
    weights = [a for name, a in codes.arrays.items() if name.endswith("/codes")]
    assert weights
    assert {a.dtype for a in weights} == {jnp.dtype("int8")}
    output, near = jax.jit(g)(codes, x), jax.jit(quantized(f, spec))(params, x)
    # Sums are exact; what is left are a few roundings of floats and of biases to units.
    np.testing.assert_allclose(output, near, rtol=0, atol=1e-5 * np.abs(near).max())
    return weights


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_quantized(name):
    f, params = PRODUCTS[name]
    check(f, params, X, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_dynamic_ranges_are_those_of_quantized(name):
    f, params = PRODUCTS[name]
    check(f, params, X, True)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_those_of_quantized(name, dynamic):
    layer = LAYERS[name]()
    if name != "attention":
        layer.bias[...] = normal(*layer.bias.shape)
    f, params = jaxeff.functional(layer)
    weights = check(f, params, X, dynamic)
    assert len(weights) == (4 if name == "attention" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", IMAGES)
def test_images_are_those_of_quantized(name, dynamic):
    params = {"w": normal(3, 3, 8, 6), "b": normal(6)}
    check(IMAGES[name], params, normal(2, 5, 4, 8), dynamic)


@pytest.mark.slow
def test_a_folded_batch_norm_leaves_no_convolution_in_float():
    model = Block(2, 3, 1, rngs=nnx.Rngs(0))
    model.eval()
    f, params = functional(model)
    x = jax.random.normal(jax.random.key(1), (1, 4, 4, 2))
    f, params, _ = fold_batch_norm(f, params, x)
    g = integer(f, calibrate(f, params, [x], {"*:linear": Int(8)}).spec)
    codes = g.convert(params, x)
    names = {eqn.primitive.name for eqn in jax.make_jaxpr(g)(codes, x).eqns}
    assert "export_composite" in names
    assert "conv_general_dilated" not in names


def _convolved(p, x):
    dimensions = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, p["w"][None, None], (1, 1), "SAME", None, None, dimensions)


@pytest.mark.parametrize("product", [_convolved, lambda p, x: x.reshape(2, 20, 8) @ p["w"]])
def test_means_hold_peaks(product):
    # All of a mean comes from one position of twenty, which is far beyond the range of means.
    x = jnp.where(jnp.arange(20).reshape(5, 4, 1) == 7, normal(2, 5, 4, 8), 0.0)

    def f(p, x):
        y = jax.nn.relu(product(p, x))
        return y.mean(tuple(range(1, y.ndim - 1))) @ p["head"]

    check(f, {"w": normal(8, 6), "head": normal(6, 3)}, x, False)


CODES = {
    # Sums of more than 2^24, which float32 doesn't have: channels are added in parts.
    "many channels": ((1, 5, 5, 960), (1, 1, 960, 3), 1),
    "windows of many channels": ((1, 5, 5, 130), (3, 3, 130, 3), 1),
    "a window for each channel": ((1, 5, 5, 8), (3, 3, 1, 8), 8),
    # More than 514 products of a group, whose channels can't be parted: whole numbers.
    "groups of many channels": ((1, 3, 3, 1200), (1, 1, 600, 4), 2),
}


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("case", CODES)
def test_convolutions_of_codes_are_exact_where_they_are_computed_in_floats(case, extreme):
    shape, kernel, groups = CODES[case]
    rng = np.random.default_rng(0)
    x = rng.integers(255 if extreme else 0, 256, shape).astype(np.uint8)
    w = rng.integers(-127, -126 if extreme else 128, kernel).astype(np.int8)
    settings = {
        "strides": (1, 1), "dilation": (1, 1), "groups": groups, "input_zero": 0,
        "result": "sums", "zero": 0, "lower": 0, "upper": 255, "shortcut": "none",
        "shortcut_zero": 0, "weight_bits": 8, "activation_bits": 8,
    }  # fmt: skip
    bias = np.zeros(kernel[-1], np.int32)
    g = jax.jit(lambda *operands: q_conv2d(*operands, padding=(0,) * 4, **settings))
    compiled = g.lower(x, w, bias).compile()
    windows = sliding_window_view(x.astype(np.int64), kernel[:2], (1, 2))
    depth, features = kernel[2], kernel[3] // groups
    expected = [
        np.einsum(
            "bijcuv,uvcf->bijf",
            windows[..., i * depth : (i + 1) * depth, :, :],
            w[..., i * features : (i + 1) * features].astype(np.int64),
        )
        for i in range(groups)
    ]
    np.testing.assert_array_equal(compiled(x, w, bias), np.concatenate(expected, -1))
    assert ("f32" in compiled.as_text()) == (case != "groups of many channels")
