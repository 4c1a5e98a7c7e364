"""Modules of Equinox go through `functional` and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.pruning import Prune

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


def test_a_plan_says_how_many_groups_are_left():
    keys = jax.random.split(jax.random.key(0), 3)
    model = equinox.nn.Sequential([
        equinox.nn.Conv2d(3, 8, 3, key=keys[0]), equinox.nn.Lambda(jax.nn.relu),
        equinox.nn.Conv2d(8, 16, 3, groups=4, key=keys[1]), equinox.nn.Lambda(jax.nn.relu),
        equinox.nn.Conv2d(16, 4, 1, key=keys[2]),
    ])  # fmt: skip
    x = jax.random.normal(keys[0], (3, 8, 8))
    f, params = jaxeff.functional(model)
    plan = jaxeff.prune_plan(f, params, x, {"*:linear": Prune(0.5)})
    small = plan.shrink(params)
    restored = jaxeff.restore(model, small, plan=plan)
    assert (restored.layers[2].groups, model.layers[2].groups) == (2, 4)
    np.testing.assert_allclose(restored(x), jaxeff.pruned(f, plan)(small, x), atol=1e-6)
