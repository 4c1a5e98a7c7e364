"""Every linear layer as a matrix product, and the parameter behind its weight."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression.post_training import multiplications
from jaxeff.core import functional
from jaxeff.program import trace


def _normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


CONVOLUTIONS = {
    "plain": dict(kernel_size=(3, 2), strides=(2, 1), padding="SAME"),
    "dilated": dict(kernel_size=(3, 3), kernel_dilation=2, padding="VALID"),
    "groups": dict(kernel_size=(3, 3), feature_group_count=2),
    "depthwise": dict(kernel_size=(3, 3), feature_group_count=4, padding=1),
    "transposed": dict(kernel_size=(3, 3), input_dilation=2, padding=1),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_patches_times_a_matrix(name):
    model = nnx.Conv(4, 8, use_bias=False, rngs=nnx.Rngs(0), **CONVOLUTIONS[name])
    f, params = functional(model)
    x = _normal(1, 2, 7, 6, 4)
    at, w = _only(f, params, x)
    rows, matrix = at.contraction.rows(x), at.contraction.matrix(w)
    product = jnp.einsum("gni,gim->ngm", rows, matrix, precision="highest")
    y = f(params, x)
    np.testing.assert_allclose(product.reshape(y.shape), y, atol=1e-5)
    np.testing.assert_array_equal(at.contraction.weight(matrix), w)


@pytest.mark.slow
def test_dot_products_of_all_kinds():
    def f(params, x):
        return jnp.einsum("ghi,bgi->bgh", params["w"].transpose(2, 1, 0), x)

    params, x = {"w": _normal(0, 5, 4, 3)}, _normal(1, 2, 3, 5)
    at, w = _only(f, params, x)
    assert at.contraction.groups == 3
    product = at.contraction.rows(x) @ at.contraction.matrix(w)
    np.testing.assert_allclose(product.transpose(1, 0, 2), f(params, x), rtol=1e-5, atol=1e-5)
    # Back to the parameter, whose axes are in another order.
    leaf = at.origin.to_leaf(at.contraction.weight(at.contraction.matrix(w) * 2), params["w"])
    np.testing.assert_array_equal(leaf, 2 * params["w"])


def test_linen_and_heads():
    model = nn.DenseGeneral((2, 3), axis=(-2, -1))
    x = _normal(1, 4, 5, 6)
    f, params = functional(model, model.init(jax.random.key(0), x))
    at, w = _only(f, params, x)
    product = (at.contraction.rows(x) @ at.contraction.matrix(w)).reshape(4, 2, 3)
    np.testing.assert_allclose(product, f(params, x), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(at.contraction.weight(at.contraction.matrix(w)), w)


@pytest.mark.slow
def test_a_moment_in_parts_is_the_whole_one(monkeypatch):
    model = nnx.Conv(2, 3, (3, 3), rngs=nnx.Rngs(0))
    f, params = functional(model)
    x = _normal(1, 5, 6, 6, 2)
    at, _ = _only(f, params, x)
    rows = np.asarray(at.contraction.rows(x), np.float64)[0]
    expected = rows.T @ rows / len(rows)
    monkeypatch.setattr("jaxeff.compression.post_training._multiplication._ROWS", 1000)
    assert len(list(at.parts(x))) > 1
    np.testing.assert_allclose(at.moment(x, x)[0], expected, rtol=1e-4, atol=1e-5)


def test_what_is_no_parameter_is_refused():
    def f(params, x):
        low_rank = x @ (params["a"] @ params["b"])
        noised = low_rank @ jnp.sin(params["c"])
        return jax.lax.scan(lambda h, _: (h @ params["d"], None), noised, None, length=2)[0]

    params = {n: jnp.eye(3) for n in "abcd"}
    found, refused = multiplications(trace(f, params, jnp.ones((2, 3))))
    assert not found
    assert len(refused) == 2
    assert all("computed from parameters" in reason for reason in refused.values())


def _only(f, params, x):
    ((_, at),) = multiplications(trace(f, params, x))[0].items()
    leaf = jax.tree.leaves(params)[at.origin.leaf]
    return at, at.origin.to_input(leaf)
