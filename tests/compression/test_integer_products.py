"""`integer`: products over any axes, convolutions of sequences and in other layouts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxeff
from jaxeff.compression import Int, calibrate, fold_batch_norm, integer, quantized
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
