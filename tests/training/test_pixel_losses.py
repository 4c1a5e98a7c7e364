"""Cross entropy of pixels with weights of classes and pixels that don't count: scikit-learn's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.metrics import log_loss

from jaxeff.training import cross_entropy, fit, label_loss

LOGITS = jax.random.normal(jax.random.key(0), (3, 4, 5, 3))
LABELS = jax.random.randint(jax.random.key(1), (3, 4, 5), -1, 3)
WEIGHTS = np.array([0.5, 2.0, 3.0])


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["plain", "weighted"])
def test_it_is_the_weighted_mean_over_pixels_that_count(weights):
    ours = jax.jit(lambda z: label_loss(z, LABELS, weights=weights, ignored=-1))(LOGITS)
    labels = np.asarray(LABELS).ravel()
    counts = labels >= 0
    probs = np.asarray(jax.nn.softmax(LOGITS.astype(jnp.float32))).reshape(-1, 3)[counts]
    share = None if weights is None else weights[labels[counts]]
    expected = log_loss(labels[counts], probs, sample_weight=share, labels=[0, 1, 2])
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


def test_what_is_no_class_and_not_ignored_is_seen():
    assert jnp.isnan(label_loss(LOGITS, LABELS, weights=WEIGHTS))
    assert jnp.isnan(label_loss(LOGITS, LABELS.at[0, 0, 0].set(3), ignored=-1))
    assert label_loss(LOGITS, jnp.full_like(LABELS, -1), ignored=-1) == 0
    with pytest.raises(ValueError, match="one for each of 3 classes"):
        label_loss(LOGITS, LABELS, weights=WEIGHTS[:2])


def test_accuracy_is_that_of_pixels_that_count():
    loss = cross_entropy(lambda params, x: x * params, ignored=-1, weights=WEIGHTS)
    metrics = loss(jax.random.key(0), jnp.float32(1), None, (LOGITS, LABELS), 0)[1][0]
    right, labels = np.asarray(LOGITS).argmax(-1), np.asarray(LABELS)
    np.testing.assert_allclose(
        metrics["accuracy"], (right == labels)[labels >= 0].mean(), rtol=1e-6
    )


def test_fit_takes_ignored_labels_and_no_others():
    def trained(**options):
        loss = cross_entropy(lambda params, x: x * params, **options)
        run = {"optimizer": optax.sgd(0.1), "epochs": 1, "batch_size": 3, "progress": False}
        return fit(jax.random.key(0), loss, jnp.float32(1), (LOGITS, LABELS), **run).params

    assert jnp.isfinite(trained(ignored=-1)).all()
    with pytest.raises(ValueError, match="labels"):
        trained()
