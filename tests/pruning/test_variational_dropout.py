"""Learnt dropout of single weights: its moments, its divergence, and what is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.compression import quantized
from jaxeff.pruning.gates import dropout_divergence
from jaxeff.pruning.sparsity import kept_weights, log_variances, variational_dropout
from jaxeff.training import fit, stateless

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (5, 4))


def net(params, x):
    return jnp.tanh(x @ params["a"]["w"] + params["a"]["b"][None]) @ params["b"]["w"]


PARAMS = {
    "a": {"w": jax.random.normal(KEY, (4, 3)), "b": jnp.ones(3)},
    "b": {"w": jax.random.normal(KEY, (3, 2))},
}


@pytest.mark.slow
def test_results_have_the_moments_of_drawn_weights():
    def linear(params, x):
        return x @ params["a"]["w"] + params["a"]["b"][None]

    spread = {"a": jnp.linspace(-3.0, 0.0, 12).reshape(4, 3)}
    draws = 4000
    ys, divergence = jax.jit(
        jax.vmap(lambda k: variational_dropout(linear)(k, PARAMS, spread, X), out_axes=(0, None))
    )(jax.random.split(KEY, draws))
    variance = jnp.square(X) @ jnp.exp(spread["a"])
    error = jnp.sqrt(variance / draws)
    assert (jnp.abs(ys.mean(0) - linear(PARAMS, X)) < 4 * error).all()
    assert (jnp.abs(ys.var(0) - variance) < 4 * variance * np.sqrt(2 / draws)).all()
    # Examples have noise of their own.
    noise = ys - linear(PARAMS, X)[None]
    shared = (noise[:, 0, 0] * noise[:, 1, 0]).mean()
    assert jnp.abs(shared) < 4 * jnp.sqrt(variance[0, 0] * variance[1, 0] / draws)
    rate = spread["a"] - jnp.log(jnp.square(PARAMS["a"]["w"]) + 1e-8)
    np.testing.assert_allclose(divergence, dropout_divergence(rate).sum(), rtol=1e-5)


def test_what_is_kept_is_a_spec():
    spread = log_variances(net, PARAMS, X, ["*:linear"])
    assert {name: a.shape for name, a in spread.items()} == {"a": (4, 3), "b": (3, 2)}
    w = PARAMS["a"]["w"]
    noisy = jnp.log(jnp.square(w)) + jnp.where(jnp.arange(12).reshape(4, 3) % 2 == 0, 4.0, 2.0)
    spec = kept_weights(net, PARAMS, {**spread, "a": noisy}, X)
    where = jnp.arange(12).reshape(4, 3) % 2 == 1
    np.testing.assert_array_equal(spec["a"].weights.where, where)
    assert spec["b"].weights.where.all()
    by_hand = {**PARAMS, "a": {**PARAMS["a"], "w": jnp.where(where, w, 0)}}
    np.testing.assert_allclose(quantized(net, spec)(PARAMS, X), net(by_hand, X), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")
def test_training_drops_inputs_that_say_nothing():
    def f(params, x):
        return x @ params["a"]["w"]

    x = jax.random.normal(KEY, (256, 6))
    y = x[:, :2].sum(1, keepdims=True)
    params = {"a": {"w": 0.3 * jnp.ones((6, 1))}}
    g = variational_dropout(f)

    def loss(key, learnt, batch):
        result, divergence = g(key, *learnt, batch[0])
        return 10 * jnp.square(result - batch[1]).mean() + divergence

    learnt = params, log_variances(f, params, x, ["a"])
    rate = optax.cosine_decay_schedule(0.05, 1600)
    run = fit(KEY, stateless(loss), learnt, (x, y), optimizer=optax.adam(rate),
              epochs=200, batch_size=32, progress=False)  # fmt: skip
    spec = kept_weights(f, *run.params, x)
    assert spec["a"].weights.where.ravel().tolist() == [True, True, False, False, False, False]


def test_variances_of_layers_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match=r"variances for \['c'\].*those are \['a', 'b'\]"):
        variational_dropout(net)(KEY, PARAMS, {"c": jnp.ones(3)}, X)
    with pytest.raises(ValueError, match="multiplies by one weight"):
        log_variances(net, PARAMS, X, ["tanh"])
