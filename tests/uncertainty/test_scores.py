import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxeff import uncertainty as u
from jaxeff.moment_propagation import Gaussian


def predictions(seed, n, classes, sharpness):
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 1 / sharpness), n).astype(np.float32)
    labels = rng.integers(0, classes, n)
    return probs, labels


CASES = (
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 40]),  # few shapes: each one compiles
    st.sampled_from([2, 3, 6]),
    st.sampled_from([0.5, 5]),
)


@pytest.mark.slow
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


LOGITS = jnp.array([[3.0, -1.0, 0.5], [0.0, 2.0, -4.0]])
PROBS = jax.nn.softmax(LOGITS)
OF_PREDICTIONS = [u.nll, u.ece, u.brier]
OF_SAMPLES = [u.decompose, u.predictive_entropy, u.softmax_entropy, u.mutual_information]


@pytest.mark.parametrize("score", [*OF_PREDICTIONS, *OF_SAMPLES])
def test_logits_are_not_taken_for_probabilities(score):
    labels = (jnp.array([0, 1]),) if score in OF_PREDICTIONS else ()
    lead = (lambda x: x[None]) if score in OF_SAMPLES else (lambda x: x)
    score(lead(PROBS), *labels)
    for wrong in (LOGITS, 2 * PROBS, jax.nn.log_softmax(LOGITS), PROBS - 1 / 3):
        with pytest.raises(ValueError, match=r"must be probabilities, but . of 2 rows .*softmax"):
            score(lead(wrong), *labels)
    with pytest.raises(TypeError, match="must be an array of probabilities, not"):
        score([[0.5, 0.5]], *labels)
    of_nan = jax.tree.leaves(score(lead(PROBS.at[0, 0].set(jnp.nan)), *labels))
    assert any(jnp.isnan(leaf).any() for leaf in of_nan) or score is u.ece
    jax.block_until_ready(jax.jit(score)(lead(LOGITS), *labels))  # values are not known there
    jax.jit(lambda probs: score(probs, *labels))(lead(PROBS))  # labels are


def test_half_precision_probabilities_pass():
    logits = jax.random.normal(jax.random.key(0), (50, 10))
    for dtype in (jnp.bfloat16, jnp.float16):
        u.nll(jax.nn.softmax(logits.astype(dtype)), jnp.zeros(50, int))


def test_logits_are_not_taken_for_log_probabilities():
    labels = jnp.array([0, 1])
    u.nll_from_log(jnp.log(jnp.eye(3)[:2]), labels)  # with -inf
    with pytest.raises(ValueError, match=r"must be log-probabilities.*log_softmax\(logits\)"):
        u.nll_from_log(LOGITS, labels)
    with pytest.raises(ValueError, match="log-probabilities"):
        u.nll_from_log(PROBS, labels)


@pytest.mark.parametrize("score", [u.accuracy, *OF_PREDICTIONS])
def test_labels_are_classes(score):
    for labels, error, message in (
        ([0, 3], ValueError, "3 classes, so labels must be 0 to 2; found 0 to 3"),
        ([-1, 0], ValueError, "found -1 to 0"),
        ([0, 1, 2], TypeError, r"labels of shape \[2\], not int32\[3\]"),
        ([0.0, 1.0], TypeError, r"integer class labels"),
        ([[1, 0, 0], [0, 1, 0]], TypeError, r"not int32\[2, 3\]"),
    ):
        with pytest.raises(error, match=message):
            score(PROBS, jnp.array(labels))


def test_gaussian_logits_are_gaussian():
    for call in (lambda x: u.sample_logits(jax.random.key(0), x), u.raw_variance):
        with pytest.raises(TypeError, match=r"logits must be a Gaussian, as jaxeff\.moments"):
            call(LOGITS)
    gaussian = Gaussian(LOGITS, jnp.ones_like(LOGITS))
    with pytest.raises(TypeError, match="must be an array of probabilities, not"):
        u.nll(gaussian, jnp.array([0, 1]))


@pytest.mark.parametrize("score", [u.auroc, u.aupr, u.fpr95])
def test_detection_takes_one_score_for_each_input(score):
    for bad in (LOGITS, jnp.zeros(0), [0.1, 0.2], jnp.array(0.5)):
        with pytest.raises(TypeError, match=r"outside must be scores of shape \[n\]"):
            score(jnp.ones(3), bad)
