"""Draws of a partial posterior as an ensemble, and what a budget buys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.bayes import laplace, predict, sample
from jaxeff.ensembles import affordable_members, sampled
from jaxeff.nn import MLP

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (20, 6))
F, PARAMS = jaxeff.functional(MLP((6, 12, 8, 3), rngs=nnx.Rngs(0)))


@pytest.mark.slow
def test_draws_of_some_layers_share_the_others():
    posterior = {**PARAMS, "fc2": jax.tree.map(
        lambda w: jaxeff.Gaussian(w, jnp.full_like(w, 0.1)), PARAMS["fc2"]
    )}  # fmt: skip
    g, params = sampled(KEY, F, posterior, 5)
    assert params["fc1"]["kernel"].shape == (6, 12)
    assert params["fc2"]["kernel"].shape == (5, 12, 8)
    draws = sample(KEY, posterior, 5)
    out = jax.jit(g)(params, X)
    for i in range(5):
        one = jax.tree.map(lambda leaf, i=i: leaf[i], draws)
        np.testing.assert_allclose(out[i], F(one, X), atol=1e-6)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # NumPyro
def test_draws_of_a_laplace_approximation():
    labels = (X[:, 0] > 0).astype(jnp.int32)
    posterior = laplace(
        jax.random.key(0), F, PARAMS, (X, labels), "fc3", "kron", prior_precision=1.0
    )
    g, params = sampled(KEY, F, posterior, 4)
    assert params["fc2"]["kernel"].shape == (12, 8)
    np.testing.assert_allclose(
        jax.jit(g)(params, X), predict(KEY, F, posterior, X, samples=4), atol=1e-5
    )


def test_a_budget_buys_members():
    macs = jaxeff.cost(F, PARAMS, X[:1]).macs
    assert macs == 6 * 12 + 12 * 8 + 8 * 3
    assert affordable_members(F, PARAMS, X[:1], "*", times=10.0) == 10
    assert affordable_members(F, PARAMS, X[:1], "fc3", times=2.0) == 1 + macs // (8 * 3)
    assert affordable_members(F, PARAMS, X[:1], "fc2", times=2.0) == 1 + macs // (12 * 8 + 8 * 3)
    assert affordable_members(F, PARAMS, X[:1], "fc1", times=1.5) == 1
    with pytest.raises(ValueError, match="times must be at least 1"):
        affordable_members(F, PARAMS, X[:1], "fc1", times=0.5)
