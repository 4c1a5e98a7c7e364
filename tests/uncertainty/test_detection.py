import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jaxeff import uncertainty as u

# Few distinct values: most examples have ties within and across the two sets.
SCORES = hnp.arrays(
    np.float32,
    st.sampled_from([1, 7, 60]),  # few shapes: each one compiles
    # XLA takes subnormal numbers as zero on a CPU, scikit-learn does not.
    elements=st.one_of(
        st.sampled_from([0.0, 0.5, 1.0]), st.floats(-2, 2, width=32, allow_subnormal=False)
    ),
)


def fpr95_by_curve(labels, scores):
    fpr, tpr, _ = sk.roc_curve(labels, scores, drop_intermediate=False)
    return fpr[np.argmax(tpr >= 0.95)]


ORACLES = {u.auroc: sk.roc_auc_score, u.aupr: sk.average_precision_score, u.fpr95: fpr95_by_curve}


@pytest.mark.slow
@pytest.mark.parametrize("metric", ORACLES)
@settings(deadline=None, max_examples=25)
@given(SCORES, SCORES)
def test_agrees_with_scikit_learn(metric, inside, outside):
    labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    expected = ORACLES[metric](labels, np.r_[inside, outside])
    ours = metric(jnp.asarray(inside), jnp.asarray(outside))
    # A mean of n float32 ratios: n roundings at most.
    np.testing.assert_allclose(ours, expected, atol=len(labels) * np.finfo(np.float32).eps)


@pytest.mark.parametrize("metric", ORACLES)
def test_ten_thousand_scores(metric):
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(0, 1, 10_000), rng.normal(1, 1, 9_000)
    inside, outside = (np.round(s, 2).astype(np.float32) for s in (inside, outside))
    labels = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    expected = ORACLES[metric](labels, np.r_[inside, outside])
    np.testing.assert_allclose(jax.jit(metric)(inside, outside), expected, rtol=1e-5)


@pytest.mark.parametrize("metric", ORACLES)
def test_only_the_order_counts(metric):
    inside, outside = jax.random.normal(jax.random.key(0), (2, 50))
    ours = metric(inside, outside)
    np.testing.assert_array_equal(ours, metric(jnp.exp(inside), jnp.exp(outside)))


@pytest.mark.slow
def test_limits():
    low, high = jnp.arange(4.0), jnp.arange(10.0, 15.0)
    assert u.auroc(low, high) == u.aupr(low, high) == 1
    assert u.fpr95(low, high) == 0
    assert u.auroc(high, low) == 0
    assert u.fpr95(high, low) == 1
    assert u.auroc(low, low) == 0.5


@pytest.mark.parametrize("metric", ORACLES)
def test_nan_makes_nan(metric):
    scores = jnp.arange(5.0)
    assert jnp.isnan(metric(scores.at[2].set(jnp.nan), scores))
    assert jnp.isnan(metric(scores, scores.at[2].set(jnp.nan)))


@pytest.mark.parametrize("metric", ORACLES)
def test_vmap(metric):
    inside, outside = jax.random.normal(jax.random.key(1), (2, 3, 40)).round(1)
    mapped = jax.jit(jax.vmap(metric))(inside, outside)
    np.testing.assert_allclose(
        mapped, [metric(*pair) for pair in zip(inside, outside, strict=True)], rtol=1e-6
    )
