import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve

from jaxeff import uncertainty as u


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
