import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import uncertainty as u


def test_risk_is_the_mean_loss_of_the_surest():
    rng = np.random.default_rng(0)
    scores, losses = rng.normal(size=50), rng.random(50)
    curve = jax.jit(u.risk_coverage)(jnp.asarray(scores), jnp.asarray(losses))
    order = np.argsort(scores)
    expected = [losses[order[:k]].mean() for k in range(1, 51)]
    np.testing.assert_allclose(curve.risk, expected, rtol=1e-5)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 51) / 50, rtol=1e-6)
    np.testing.assert_allclose(u.aurc(scores, losses), np.mean(expected), rtol=1e-5)


def test_ties_count_as_random_order_on_average():
    """Over 4,000 orders of equal scores, within four standard errors."""
    rng = np.random.default_rng(1)
    scores, losses = rng.integers(0, 4, 30), rng.integers(0, 2, 30)
    areas = []
    for _ in range(4000):
        order = np.lexsort((rng.random(30), scores))
        areas.append((np.cumsum(losses[order]) / np.arange(1, 31)).mean())
    error = np.std(areas) / len(areas) ** 0.5
    assert abs(u.aurc(jnp.asarray(scores), jnp.asarray(losses)) - np.mean(areas)) < 4 * error


def test_extremes_of_the_area():
    losses = jnp.array([0, 0, 0, 1, 1])
    np.testing.assert_allclose(u.aurc(jnp.ones(5), losses), 0.4, rtol=1e-6)
    best = (1 / 4 + 2 / 5) / 5
    np.testing.assert_allclose(u.aurc(jnp.arange(5.0), losses), best, rtol=1e-6)
    np.testing.assert_allclose(u.excess_aurc(jnp.arange(5.0), losses), 0, atol=1e-7)
    np.testing.assert_allclose(u.excess_aurc(jnp.ones(5), losses), 0.4 - best, rtol=1e-5)
    assert jnp.isnan(u.aurc(jnp.array([0.0, jnp.nan]), jnp.array([0, 1])))


@pytest.mark.parametrize("coverage", [0.01, 0.5, 1.0])
def test_a_threshold_accepts_the_share(coverage):
    scores = jax.random.normal(jax.random.key(0), (200,))
    threshold = u.coverage_threshold(scores, coverage)
    g = jax.jit(u.selective(lambda x: 2 * x, lambda y: y / 2, threshold))
    outputs, accepted = g(scores)
    np.testing.assert_allclose(outputs, 2 * scores)
    assert coverage <= accepted.mean() <= coverage + 1 / 200


def test_one_loss_per_score():
    with pytest.raises(ValueError, match="one loss"):
        u.aurc(jnp.ones(3), jnp.ones(4))
