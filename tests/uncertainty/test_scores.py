import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxeff import uncertainty as u


def predictions(seed, n, classes, sharpness):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 1 / sharpness), n).astype(np.float32)
    labels = rng.integers(0, classes, n)
    return probs, labels


CASES = (
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.integers(2, 6),
    st.sampled_from([0.5, 5]),
)


@settings(deadline=None, max_examples=25)
@given(*CASES)
def test_agree_with_scikit_learn(seed, n, classes, sharpness):
    probs, labels = predictions(seed, n, classes, sharpness)
    all_labels = np.arange(classes)
    np.testing.assert_allclose(
        u.accuracy(probs, labels), sk.accuracy_score(labels, probs.argmax(1))
    )
    # scikit-learn renormalises rows and clips at the rounding unit of the dtype.
    floor = np.finfo(np.float32).eps
    if probs[np.arange(n), labels].min() > floor:
        expected = sk.log_loss(labels, probs / probs.sum(1, keepdims=True), labels=all_labels)
        np.testing.assert_allclose(u.nll(probs, labels), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        u.brier(probs, labels),
        sk.brier_score_loss(labels, probs, labels=all_labels, scale_by_half=False)
        if classes > 2
        else 2 * sk.brier_score_loss(labels, probs[:, 1], labels=[0, 1], scale_by_half=True),
        rtol=1e-5,
        atol=1e-6,
    )


def test_zero_probability_is_finite_and_log_space_is_exact():
    logits = jnp.array([[0.0, -1000.0], [0.0, 0.0]])
    labels = jnp.array([1, 0])
    tiny = float(jnp.finfo(jnp.float32).tiny)
    np.testing.assert_allclose(
        u.nll(jax.nn.softmax(logits), labels), (-np.log(tiny) + np.log(2)) / 2, rtol=1e-6
    )
    np.testing.assert_allclose(
        u.nll_from_log(u.predictive_log_probs(logits[None]), labels),
        (1000 + np.log(2)) / 2,
        rtol=1e-6,
    )


@pytest.mark.parametrize("score", [u.accuracy, u.nll, u.brier, u.ece])
def test_jit_and_vmap(score):
    batches = [predictions(seed, 30, 4, 2) for seed in range(3)]
    probs, labels = (jnp.stack([b[i] for b in batches]) for i in range(2))
    mapped = jax.jit(jax.vmap(score))(probs, labels)
    looped = [score(*map(jnp.asarray, b)) for b in batches]
    np.testing.assert_allclose(mapped, looped, rtol=1e-5)


def test_accuracy_takes_logits():
    logits = jnp.array([[2.0, -1.0], [0.0, 3.0], [1.0, 4.0]])
    np.testing.assert_allclose(u.accuracy(logits, jnp.array([0, 1, 0])), 2 / 3, rtol=1e-6)
