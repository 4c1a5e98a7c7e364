"""Dirichlet predictions against draws, and the loss that trains them against its expectation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.training import evidential, fit
from jaxeff.uncertainty import (
    decompose,
    dirichlet_decomposition,
    dirichlet_probs,
    evidence,
)

KEY = jax.random.key(0)
CONCENTRATION = jnp.asarray([[1.0, 1.0, 1.0], [9.0, 2.0, 1.5], [30.0, 25.0, 1.0]])


@pytest.mark.oracle
def test_closed_forms_are_those_of_draws():
    n = 200_000
    drawn = jax.random.dirichlet(KEY, CONCENTRATION, (n, 3))
    probs = np.asarray(drawn, np.float64)
    error = probs.std(0) / np.sqrt(n)
    assert (np.abs(probs.mean(0) - dirichlet_probs(CONCENTRATION)) < 5 * error).all()
    uncertainty = dirichlet_decomposition(CONCENTRATION)
    entropies = -(probs * np.log(np.maximum(probs, 1e-30))).sum(-1)
    error = entropies.std(0) / np.sqrt(n)
    assert (np.abs(entropies.mean(0) - uncertainty.aleatoric) < 5 * error).all()
    sampled = decompose(drawn)
    np.testing.assert_allclose(uncertainty.total, sampled.total, atol=2e-3)
    np.testing.assert_allclose(uncertainty.epistemic, sampled.epistemic, atol=2e-3)


def logits(params, x):
    return x @ params["w"]


@pytest.mark.oracle
def test_the_loss_is_the_expected_square_and_the_divergence():
    x, labels = jnp.eye(3), jnp.asarray([0, 2, 1])
    params = {"w": jnp.asarray([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [1.0, 3.0, -2.0]])}
    n = 200_000
    concentration = evidence(logits(params, x)) + 1
    drawn = np.asarray(jax.random.dirichlet(KEY, concentration, (n, 3)), np.float64)
    target = np.eye(3)[np.asarray(labels)]
    squares = ((drawn - target) ** 2).sum(-1).mean(1)
    start = evidential(logits, ramp=10)(KEY, params, None, (x, labels), jnp.int32(0))[0]
    assert abs(squares.mean() - start) < 5 * squares.std() / np.sqrt(n)
    # The divergence at the end of the ramp: the mean of the log-ratio of densities.
    others = np.asarray(target + (1 - target) * np.asarray(concentration))
    wrong = np.asarray(jax.random.dirichlet(jax.random.key(1), jnp.float32(others), (n, 3)))
    ratio = np.stack([
        jax.vmap(lambda p, a=others[i]: jax.scipy.stats.dirichlet.logpdf(p, jnp.float32(a)))(
            wrong[:, i] / wrong[:, i].sum(-1, keepdims=True)
        ) - np.log(2.0)
        for i in range(3)
    ], 1).mean(1)  # fmt: skip
    late = evidential(logits, ramp=10)(KEY, params, None, (x, labels), jnp.int32(50))[0]
    assert abs(ratio.mean() - (late - start)) < 5 * ratio.std() / np.sqrt(n)
    half = evidential(logits, ramp=10)(KEY, params, None, (x, labels), jnp.int32(5))[0]
    np.testing.assert_allclose(half - start, (late - start) / 2, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # optax
def test_it_trains_and_knows_less_of_what_it_has_not_seen():
    x = jax.random.normal(KEY, (300, 2)) + 3 * jnp.asarray([[1.0, 0], [-1, 0]])[jnp.arange(300) % 2]
    labels = jnp.arange(300, dtype=jnp.int32) % 2

    def f(params, x):
        hidden = jax.nn.relu(x @ params["a"] + params["b"][None])
        return hidden @ params["c"]

    keys = jax.random.split(KEY, 2)
    params = {
        "a": jax.random.normal(keys[0], (2, 32)), "b": jnp.zeros(32),
        "c": 0.1 * jax.random.normal(keys[1], (32, 2)),
    }  # fmt: skip
    trained = fit(
        KEY, evidential(f, ramp=100), params, (x, labels), optimizer=optax.adam(1e-2), epochs=60,
        batch_size=50, progress=False,
    ).params  # fmt: skip
    concentration = evidence(f(trained, x)) + 1
    assert (dirichlet_probs(concentration).argmax(-1) == labels).mean() > 0.95
    between = evidence(f(trained, jnp.zeros((1, 2)))) + 1
    epistemic = dirichlet_decomposition(concentration).epistemic
    assert dirichlet_decomposition(between).epistemic[0] > jnp.median(epistemic)


def test_evidence_by_another_activation():
    x, labels = jnp.eye(3), jnp.asarray([0, 2, 1])
    params = {"w": jnp.asarray([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0], [1.0, 3.0, -2.0]])}

    def inverse(params, x):
        # softplus(log(e^e - 1)) = e: outputs whose softplus is the exponential of the logits
        return jnp.log(jnp.expm1(jnp.exp(logits(params, x))))

    step = jnp.int32(5)
    ours = evidential(logits, ramp=10, activation=jnp.exp)(KEY, params, None, (x, labels), step)[0]
    same = evidential(inverse, ramp=10)(KEY, params, None, (x, labels), step)[0]
    np.testing.assert_allclose(ours, same, rtol=1e-5)
    np.testing.assert_allclose(
        evidence(logits(params, x), jnp.exp), evidence(inverse(params, x)), rtol=1e-5
    )


def test_what_is_no_concentration_is_refused():
    with pytest.raises(ValueError, match="dirichlet_probs: concentration"):
        dirichlet_probs(-CONCENTRATION)
    with pytest.raises(ValueError, match="labels must be 0 to 2"):
        fit(
            KEY, evidential(logits), {"w": jnp.ones((3, 3))}, (jnp.eye(3), jnp.asarray([0, 1, 3])),
            optimizer=optax.sgd(0.1), epochs=1, batch_size=3,
        )  # fmt: skip
