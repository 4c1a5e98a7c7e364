"""IVON and SWAG against what they converge to: exact posteriors, and moments of the way taken."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from jaxeff.bayes import (
    check_posterior,
    ivon,
    ivon_posterior,
    predict,
    sample,
    swag,
    swag_posterior,
)
from jaxeff.moment_propagation import is_gaussian
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit, stateless
from tests.bayes.linear_model import NOISE, N, linear, parameters

KEY = jax.random.key(0)
PARAMS = parameters(1)
DECAY = 0.02
"""The precision of the prior over the number of examples."""


def regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 4)) @ (np.diag([1, 0.5, 2, 1]) + 0.3)
    y = x @ [1.0, -0.5, 0.3, 2.0] + NOISE * rng.normal(size=N)
    return np.float32(x), np.float32(y)


DATA = regression()


@stateless
def loss(key, params, batch):
    x, y = batch
    return ((linear(params, x) - y) ** 2).mean() / (2 * NOISE**2)


def flat(gaussians, name):
    leaves = jax.tree.leaves(gaussians, is_leaf=is_gaussian)
    return np.concatenate([np.ravel(getattr(leaf, name)) for leaf in leaves]).astype(np.float64)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # optax
def test_ivon_finds_the_best_independent_gaussian():
    x = np.asarray(DATA[0], np.float64)
    hessian = x.T @ x / NOISE**2 / N
    precision = N * (hessian + DECAY * np.eye(4))
    mean = np.linalg.solve(precision, x.T @ np.asarray(DATA[1], np.float64) / NOISE**2)
    steps, decay = 6000, 0.999
    optimizer = ivon(
        KEY, optax.cosine_decay_schedule(0.5, steps), N, weight_decay=DECAY, decay=decay,
        curvature=1.0,
    )  # fmt: skip
    result = fit(
        KEY, loss, PARAMS, DATA, optimizer=optimizer, epochs=steps, batch_size=N, progress=False
    )
    posterior = ivon_posterior(result.params, result.opt_state)
    check_posterior(posterior, PARAMS)
    std = 1 / np.sqrt(np.diag(precision))
    assert (np.abs(flat(posterior, "mean") - mean) < 0.1 * std).all()
    # An estimate of curvature has variance 2 h^2 + sum of others' (h_ij s_j / s_i)^2, of which the
    # average over the past keeps (1 - decay) / (1 + decay).
    ratio = (hessian * std[None] / std[:, None]) ** 2
    variance = 2 * np.diag(hessian) ** 2 + ratio.sum(1) - np.diag(ratio)
    error = np.sqrt(variance * (1 - decay) / (1 + decay))
    h = 1 / flat(posterior, "var") / N - DECAY
    assert (np.abs(h - np.diag(hessian)) < 5 * error).all()
    assert (5 * error < 0.5 * np.diag(hessian)).all()


@pytest.mark.promotes("dtype", "rank")  # optax
def test_one_update_of_ivon_is_its_algorithm():
    key, params = jax.random.key(3), {"w": jnp.asarray([1.0, -2.0])}
    examples, d, h0, m, decay, rate = 50.0, 0.1, 0.4, 0.9, 0.95, 0.3
    optimizer = ivon(
        key, rate, examples, weight_decay=d, momentum=m, decay=decay, curvature=h0, samples=2
    )
    seen = []

    def grad_fn(params, _):
        seen.append(params["w"])
        return {"w": 3.0 * params["w"] + 1.0}

    state = optimizer.init(params)
    moved, state = optimizer.update(None, state, params, grad_fn=grad_fn)
    w, drawn = np.asarray(params["w"], np.float64), np.asarray(seen, np.float64)
    gradients = 3 * drawn + 1
    variance = 1 / (examples * (h0 + d))
    bent = (gradients * (drawn - w)).mean(0) / variance
    h = decay * h0 + (1 - decay) * bent + (1 - decay) ** 2 * (h0 - bent) ** 2 / (2 * (h0 + d))
    g = gradients.mean(0)  # of the first update, the average is the gradient
    np.testing.assert_allclose(moved["w"], -rate * (h0 + d) * (g + d * w) / (h + d), rtol=1e-4)
    np.testing.assert_allclose(state.curvature["w"], h, rtol=1e-4)
    assert not np.array_equal(seen[0], seen[1])
    with pytest.raises(ValueError, match="pass params and grad_fn"):
        optimizer.update(params, state, params)
    with pytest.raises(ValueError, match="holds 0 of ivon"):
        ivon_posterior(params, optax.adam(1e-3).init(params))


def walk(rank=3):
    """Parameters that a wrapped optimizer goes through, and its state at the end."""
    params = {"b/10": jnp.asarray([0.5]), "b": {"2": jnp.asarray([[1.0, 2.0], [3.0, 4.0]])}}
    optimizer = swag(optax.sgd(1.0), start=2, every=2, rank=rank)
    state, seen = optimizer.init(params), []
    for step in range(11):
        grads = jax.tree.map(
            lambda w, step=step: jax.random.normal(jax.random.key(step + w.size), w.shape), params
        )
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        seen.append(params)
    return params, state, seen


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # optax
def test_swag_is_the_moments_of_the_way():
    params, state, seen = walk()
    looked = np.stack([np.asarray(ravel_pytree(p)[0], np.float64) for p in seen[3::2]])
    assert int(state.seen) == len(looked) == 4
    posterior = swag_posterior(params, state)
    check_posterior(posterior, params)
    means = np.cumsum(looked, 0) / np.arange(1, 5)[:, None]
    deviations = (looked - means)[-3:]
    covariance = np.diag(looked.var(0)) / 2 + deviations.T @ deviations / 4
    gaussians = posterior.to_gaussians()
    # Leaves in the order of the tree, as `ravel_pytree` has them.
    np.testing.assert_allclose(flat(gaussians, "mean"), looked.mean(0), rtol=1e-5)
    np.testing.assert_allclose(flat(gaussians, "var"), np.diag(covariance), rtol=1e-4)
    n = 20_000
    drawn = np.asarray(jax.vmap(lambda p: ravel_pytree(p)[0])(sample(KEY, posterior, n)))
    products = (drawn - looked.mean(0))[:, :, None] * (drawn - looked.mean(0))[:, None]
    error = products.std(0) / np.sqrt(n)
    assert (np.abs(products.mean(0) - covariance) < 5 * error).all()


@pytest.mark.promotes("dtype", "rank")  # optax
def test_too_short_a_way_is_refused():
    params = {"w": jnp.ones(3)}
    optimizer = swag(optax.sgd(0.1), start=0, every=1)
    with pytest.raises(ValueError, match="looked at 0 times"):
        swag_posterior(params, optimizer.init(params))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ivon", "swag"])
def test_both_train_a_classifier_and_follow_the_laws(name):
    f, params, (x, y) = small_classifier()

    def optimizer(key):
        if name == "ivon":
            return ivon(key, 0.3, len(x), decay=0.999)
        return swag(optax.adam(1e-2), start=8, every=8)

    def train(key, **run):
        return fit(
            KEY, cross_entropy(f), params, (x, y), optimizer=optimizer(key), epochs=40,
            batch_size=32, progress=False, **run,
        )  # fmt: skip

    read = ivon_posterior if name == "ivon" else swag_posterior
    result = train(KEY)
    posterior = read(result.params, result.opt_state)
    logits = predict(KEY, f, posterior, x, samples=10)
    assert (logits.mean(0).argmax(-1) == y).mean() > 0.8
    assert (np.asarray(logits.std(0)) > 0).all()
    # The same key is the same run; a pure function of the state, it jits and vmaps.
    again = train(KEY)
    for one, other in zip(*map(jax.tree.leaves, (result.params, again.params)), strict=True):
        np.testing.assert_array_equal(one, other)
    if name == "ivon":
        assert not np.array_equal(train(jax.random.key(1)).params["fc2"]["bias"],
                                  result.params["fc2"]["bias"])  # fmt: skip
    compiled = jax.jit(read)(result.params, result.opt_state)
    for one, other in zip(*map(jax.tree.leaves, (posterior, compiled)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), (result.params, result.opt_state))
    twice = jax.vmap(read)(*both)
    for one, other in zip(*map(jax.tree.leaves, (posterior, twice)), strict=True):
        np.testing.assert_allclose(one, other[1], rtol=1e-5)
