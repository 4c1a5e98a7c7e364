"""Whole programs, against XLA."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import pytest
import tvm
from importer_oracle import assert_agrees
from jaxeff_export.importer import import_stablehlo

import jaxeff


def _normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return scale * jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.slow
def test_mlp():
    sizes = (20, 16, 10)
    params = [
        {"w": _normal(i, a, b, scale=a**-0.5), "b": _normal(i + 9, b)}
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]

    def mlp(params, x):
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return jax.nn.log_softmax(x @ params[-1]["w"] + params[-1]["b"])

    assert_agrees(mlp, params, _normal(3, 4, 20), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_lenet_in_plain_lax():
    kernels = [_normal(0, 5, 5, 3, 6, scale=0.1), _normal(1, 5, 5, 6, 16, scale=0.1)]
    dense = _normal(2, 400, 10, scale=0.05)

    def pool(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def lenet(kernels, dense, x):
        for kernel in kernels:
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = pool(jax.nn.relu(x))
        return jax.nn.softmax(x.reshape(x.shape[0], -1) @ dense)

    assert_agrees(lenet, kernels, dense, _normal(3, 2, 32, 32, 3), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_attention():
    weights = {name: _normal(i, 16, 16, scale=0.25) for i, name in enumerate("qkvo")}

    def attention(weights, tokens, table):
        x = table[tokens]
        mean = x.mean(-1, keepdims=True)
        x = (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-6)
        q, k, v = (
            jnp.einsum("btd,de->bte", x, weights[n]).reshape(2, 5, 4, 4).swapaxes(1, 2)
            for n in "qkv"
        )
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / 2.0
        mask = jnp.tril(jnp.ones((5, 5), bool))
        weighted = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf))
        out = jnp.einsum("bhqk,bhkd->bhqd", weighted, v).swapaxes(1, 2).reshape(2, 5, 16)
        return x + jax.nn.gelu(out @ weights["o"], approximate=False)

    tokens = jnp.array([[1, 2, 3, 4, 5], [0, 0, 7, 7, 100]])
    assert_agrees(attention, weights, tokens, _normal(8, 8, 16), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_residual_block_with_batch_norm():
    kernels = [_normal(i, 3, 3, 8, 8, scale=0.1) for i in range(2)]
    norm = {"mean": _normal(2, 8), "var": jnp.abs(_normal(3, 8)) + 0.5, "scale": _normal(4, 8)}

    def convolve(x, kernel, stride=1):
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def block(kernels, norm, x):
        y = (convolve(x, kernels[0], 2) - norm["mean"]) * jax.lax.rsqrt(norm["var"] + 1e-5)
        y = convolve(jax.nn.relu(y * norm["scale"]), kernels[1])
        return jax.nn.relu(y + x[:, ::2, ::2]).mean((1, 2))

    assert_agrees(block, kernels, norm, _normal(5, 2, 9, 9, 8), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_moment_pass():
    params = {
        "w1": jaxeff.Gaussian(_normal(0, 12, 16, scale=0.3), jnp.full((12, 16), 0.01)),
        "w2": jaxeff.Gaussian(_normal(1, 16, 4, scale=0.3), jnp.full((16, 4), 0.01)),
    }

    def network(params, x):
        return jax.nn.relu(x @ params["w1"]) @ params["w2"]

    assert_agrees(
        jaxeff.moments(network, method="diagonal"), params, _normal(2, 3, 12), rtol=1e-4, atol=1e-5
    )


def test_dense_gradient_through_a_comparison():
    def gradient(x, w, g):
        return jax.vjp(lambda w: jax.nn.relu(x @ w), w)[1](g)[0], jnp.where(x @ w > 0, g, 0)

    for width in (3, 16):  # the comparison ends the product's vectorised loop
        assert_agrees(
            gradient, _normal(0, 4, 4), _normal(1, 4, width), _normal(2, 4, width), rtol=1e-5,
            atol=1e-6,
        )  # fmt: skip


@pytest.mark.slow
def test_mixed_precision():
    """Kernels of bfloat16 one after another, at top level and in a loop."""

    def f(x, w):
        low = x.astype(jnp.bfloat16)
        dense = jax.nn.relu(low @ w.astype(jnp.bfloat16))

        def step(i, state):
            product = jnp.where(state > 0, state, 0.5 * state) @ w[:, :12].astype(jnp.bfloat16)
            return jax.nn.softmax(product) + low

        return dense, dense.astype(jnp.float32), jax.lax.fori_loop(0, 60, step, low)

    assert_agrees(f, _normal(0, 4, 12), _normal(1, 12, 16), rtol=0.01, atol=0.01)


def test_a_small_product_compiles_for_any_processor():
    """LLVM's vectoriser makes invalid code of 4 by 3 sums of 16 terms in 8 lanes."""
    exported = jax.export.export(jax.jit(lambda x, y: x @ y.T))(
        jnp.ones((4, 16)), jnp.ones((3, 16))
    )
    executable = tvm.compile(import_stablehlo(exported), target="llvm")
    assert "main" in executable.stats()
