import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from jaxeff import uncertainty as u


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 200]), st.sampled_from([1, 15, 20]))
def test_agrees_with_calibration_curve(seed, n, bins):
    """scikit-learn gives accuracy and confidence of each bin; the counts come from a histogram."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(5, 0.3), n).astype(np.float32)
    labels = rng.integers(0, 5, n)
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    accuracies, confidences = calibration_curve(correct, confidence, n_bins=bins)
    counts = np.histogram(confidence, np.linspace(0, 1, bins + 1))[0]
    expected = (counts[counts > 0] * np.abs(accuracies - confidences)).sum() / n
    np.testing.assert_allclose(u.ece(jnp.asarray(probs), labels, bins), expected, atol=1e-6)


def test_bins_hold_their_upper_edge():
    # Confidences 0.5 and 0.6 with two bins: (0, .5] and (.5, 1] keep right and wrong apart.
    probs = jnp.array([[0.5, 0.3, 0.2], [0.6, 0.2, 0.2]])
    labels = jnp.array([0, 1])
    np.testing.assert_allclose(u.ece(probs, labels, bins=2), (0.5 + 0.6) / 2, rtol=1e-6)
    np.testing.assert_allclose(u.ece(probs, labels, bins=1), abs(0.5 - 0.55), rtol=1e-5)


@pytest.mark.slow
def test_calibrated_predictions_score_near_zero():
    """With labels drawn from the predictions themselves, only sampling error is left."""
    n, bins = 20_000, 15
    probs = jax.random.dirichlet(jax.random.key(0), jnp.ones(3), (n,))
    labels = jax.random.categorical(jax.random.key(1), jnp.log(probs))
    # E|sum of n_b centred Bernoullis| <= sqrt(n_b / 4), and sum sqrt(n_b) <= sqrt(bins n).
    bound = np.sqrt(bins / n) / 2
    assert u.ece(probs, labels, bins) < bound
    assert u.ece(probs, (labels + 1) % 3, bins) > 5 * bound


def test_certain_and_right():
    assert u.ece(jnp.eye(4), jnp.arange(4)) == 0
    assert u.ece(jnp.eye(4), (jnp.arange(4) + 1) % 4) == 1


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**32 - 1))
def test_adaptive_bins_agree_with_calibration_curve(seed):
    """scikit-learn's bins between quantiles hold equally many, where no two are equal."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(5, 0.5), 200).astype(np.float32)
    labels = rng.integers(0, 5, 200)
    confidence, correct = probs.max(1), probs.argmax(1) == labels
    assert len(set(confidence)) == 200
    curve = calibration_curve(correct, confidence, n_bins=10, strategy="quantile")
    expected = np.abs(curve[0] - curve[1]).mean()
    np.testing.assert_allclose(u.adaptive_ece(jnp.asarray(probs), labels, 10), expected, atol=1e-6)


def test_equal_confidences_share_an_adaptive_bin():
    probs = jnp.tile(jnp.array([[0.75, 0.25]]), (8, 1))
    labels = jnp.array([0, 0, 0, 0, 0, 0, 1, 1])
    np.testing.assert_allclose(u.adaptive_ece(probs, labels, 4), 0, atol=1e-7)


def test_every_class_agrees_with_calibration_curve():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(4, 0.4), 300).astype(np.float32)
    labels = rng.integers(0, 4, 300)
    errors = []
    for c in range(4):
        curve = calibration_curve(labels == c, probs[:, c], n_bins=10)
        counts = np.histogram(probs[:, c], np.linspace(0, 1, 11))[0]
        errors.append((counts[counts > 0] * np.abs(curve[0] - curve[1])).sum() / 300)
    error = u.classwise_ece(jnp.asarray(probs), labels, 10)
    np.testing.assert_allclose(error, np.mean(errors), atol=1e-6)


def test_reliability_is_the_calibration_curve():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(5, 0.3), 100).astype(np.float32)
    labels = rng.integers(0, 5, 100)
    accuracies, confidences = calibration_curve(probs.argmax(1) == labels, probs.max(1), n_bins=20)
    diagram = u.reliability(jnp.asarray(probs), labels, 20)
    filled = diagram.size > 0
    np.testing.assert_allclose(diagram.accuracy[filled], accuracies, atol=1e-6)
    np.testing.assert_allclose(diagram.confidence[filled], confidences, atol=1e-6)
    assert diagram.size.sum() == 100
    assert jnp.isnan(diagram.accuracy[~filled]).all()
    assert (~filled).any()
