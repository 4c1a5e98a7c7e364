"""Flax's models take parameters back."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

import jaxeff
from jaxeff.nn import MLP


def test_nnx_and_linen_take_parameters_back():
    x = jnp.ones((2, 4))
    model = MLP((4, 8, 2), rngs=nnx.Rngs(0))
    f, params = jaxeff.functional(model)
    before = model(x)
    moved = jax.tree.map(lambda w: 0.5 * w, params)
    np.testing.assert_allclose(jaxeff.restore(model, moved)(x), f(moved, x))
    np.testing.assert_array_equal(model(x), before)

    dense = linen.Dense(3)
    variables = dense.init(jax.random.key(0), x)
    f, params = jaxeff.functional(dense, variables)
    moved = jax.tree.map(lambda w: 0.5 * w, params)
    restored = jaxeff.restore(dense, moved, None, variables)
    np.testing.assert_allclose(dense.apply(restored, x), f(moved, x))
