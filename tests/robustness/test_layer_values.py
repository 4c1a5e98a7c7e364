"""Layers' values, bins for them, and the growth of weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.nn import MLP
from jaxeff.noise import Additive, noisy
from jaxeff.robustness import activations, bin_edges, weight_growth, weight_rms

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (6, 4))


@pytest.fixture(scope="module")
def net():
    model = MLP((4, 8, 8, 3), rngs=nnx.Rngs(0))
    return functional(model)


@pytest.mark.promotes("rank")
def test_values_of_chosen_layers(net):
    f, params = net
    values = jax.jit(activations(f, ["fc1", "relu*"]))(params, X)
    assert list(values) == ["fc1", "relu", "relu_1"]
    hidden = X @ params["fc1"]["kernel"] + params["fc1"]["bias"]
    np.testing.assert_allclose(values["fc1"], hidden, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(values["relu"], jax.nn.relu(hidden), rtol=1e-5, atol=1e-6)


def test_noise_is_included(net):
    f, params = net
    g = noisy(f, {"relu": Additive(0.5)})
    values = activations(g, ["relu", "fc3"])(KEY, params, X)
    clean = activations(f, ["relu"])(params, X)
    assert 0.3 < float((values["relu"] - clean["relu"]).std()) < 0.7  # 48 values
    np.testing.assert_allclose(values["fc3"], g(KEY, params, X), rtol=1e-5, atol=1e-6)


def test_a_layer_in_a_loop_has_no_single_value():
    def f(params, x):
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params["cells"])[0]

    params = {"cells": jnp.ones((3, 4, 4))}
    with pytest.raises(ValueError, match="tanh lies inside a loop"):
        activations(f, ["tanh"])(params, X)
    with pytest.raises(ValueError, match="no site"):
        activations(f, ["conv"])(params, X)


def test_bins():
    values = jnp.array([-1.0, 0.0, 1e-20, 1e-3, 5.0, jnp.inf])
    linear = bin_edges([values[:3], values[3:]], bins=4)
    np.testing.assert_allclose(linear, [-1, 0.5, 2, 3.5, 5])
    log = bin_edges([values], bins=4, scale="log", floor=1e-4)
    np.testing.assert_allclose(log[[0, -1]], [5e-4, 5], rtol=1e-5)
    np.testing.assert_allclose(np.diff(np.log(log)), np.log(log[1] / log[0]))
    assert np.histogram(values, log)[0].sum() == 2
    assert np.diff(bin_edges([jnp.ones(3)])).min() > 0
    with pytest.raises(ValueError, match="needs positive values"):
        bin_edges([-jnp.ones(3)], scale="log")


def test_weights_grow_by_layer(net):
    _, params = net
    grown = jax.tree.map(lambda leaf: leaf, params)
    grown["fc2"]["kernel"] = 3 * grown["fc2"]["kernel"]
    grown["fc3"]["bias"] = grown["fc3"]["bias"] + 5  # a bias is no weight
    growth = jax.jit(weight_growth)(grown, params)
    assert {k: pytest.approx(float(v)) for k, v in growth.items()} == {"fc1": 1, "fc2": 3, "fc3": 1}
    nested = {
        "blocks": [{"q": jnp.full((2, 2), 2.0), "k": jnp.ones((2, 2))}],
        "w": jnp.ones((1, 2)),
    }
    rms = {k: float(v) for k, v in weight_rms(nested).items()}
    assert rms == {"blocks/0/q": 2, "blocks/0/k": 1, "w": 1}
    with pytest.raises(ValueError, match="blocks"):
        weight_growth(params, nested)
