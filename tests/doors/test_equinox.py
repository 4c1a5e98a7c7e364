"""Modules of Equinox go through `functional` and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff

equinox = pytest.importorskip("equinox")
KEY = jax.random.key(0)


def test_a_module_and_back():
    model = equinox.nn.MLP(4, 3, 8, 2, key=KEY)
    f, params = jaxeff.functional(model)
    batched, x = jax.vmap(f, (None, 0)), jax.random.normal(KEY, (5, 4))
    np.testing.assert_allclose(batched(params, x), jax.vmap(model)(x), atol=1e-6)
    assert {"layers/0", "layers/1", "layers/2"} < set(jaxeff.sites(batched, params, x))
    restored = jaxeff.restore(model, jax.tree.map(lambda w: 2 * w, params))
    np.testing.assert_allclose(restored.layers[0].weight, 2 * model.layers[0].weight)


def test_dropout_is_off_unless_a_key_is_asked_for():
    model, x = equinox.nn.Dropout(0.5), jnp.ones(100)
    f, params = jaxeff.functional(model)
    np.testing.assert_array_equal(f(params, x), x)
    g, params = jaxeff.functional(model, keyed=True)
    assert 0.2 < float((g(KEY, params, x) == 0).mean()) < 0.8
