import jax
import numpy as np
import pytest

from jaxeff.data import NOISE, plane, two_moons


def test_the_best_classifier_reaches_what_the_source_reports():
    """Bayes' rule for two arcs blurred by a Gaussian, both known."""
    arcs, sides = two_moons(jax.random.key(0), 2000, noise=0.0)
    x, y = two_moons(jax.random.key(1), 4000)
    squares = ((x[:, None] - arcs[None]) ** 2).sum(-1)
    likelihood = np.exp(-squares / (2 * NOISE**2))
    best = likelihood[:, sides == 1].sum(1) > likelihood[:, sides == 0].sum(1)
    # Standard error of an accuracy of 0.9 from 4,000 points: 0.5 %.
    assert (best == y).mean() == pytest.approx(0.90, abs=0.015)


def test_keys_decide_the_points():
    first, again, other = (two_moons(jax.random.key(k), 100)[0] for k in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert np.bincount(two_moons(jax.random.key(0), 100)[1]).tolist() == [50, 50]


def test_impossible_settings_are_named():
    with pytest.raises(ValueError, match="samples must be at least 2"):
        two_moons(jax.random.key(0), 1)


def test_the_plane_surrounds_the_points():
    points = jax.numpy.array([[0.0, 1.0], [2.0, -1.0]])
    (first, second), cells = plane(points, 0.5, 5)
    np.testing.assert_allclose([first.min(), first.max()], [-0.5, 2.5])
    np.testing.assert_allclose([second.min(), second.max()], [-1.5, 1.5])
    assert cells.shape == (25, 2)
    np.testing.assert_array_equal(cells[7], [first[1, 2], second[1, 2]])
