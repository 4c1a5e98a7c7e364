import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.robustness import envelope, preserved_accuracy, robustness_area

LEVELS = jnp.array([0.1, 0.3, 0.9, 2.0])
CURVES = jnp.array([[0.9, 0.8, 0.2, 0.1], [0.7, 0.75, 0.6, 0.1], [0.3, 0.4, 0.5, jnp.nan]])


@pytest.mark.slow
def test_envelope_is_the_best_training_at_each_level():
    np.testing.assert_allclose(envelope(CURVES), [0.9, 0.8, 0.6, 0.1])


def test_area_by_hand_over_uneven_levels():
    ideal = envelope(CURVES)
    area = 0.2 * 0.725 + 0.6 * 0.675 + 1.1 * 0.35
    expected = 0.2 * 0.85 + 0.6 * 0.7 + 1.1 * 0.35
    found = jax.jit(robustness_area)(LEVELS, CURVES, ideal)
    assert found.shape == (3,)
    assert float(found[1]) == pytest.approx(area / expected, rel=1e-6)
    assert float(robustness_area(LEVELS, ideal, ideal)) == pytest.approx(1)
    assert np.isnan(found[2])  # a diverged replicate has no area


def test_preserved_accuracy_is_taken_at_the_nominal_level():
    preserved = preserved_accuracy(LEVELS, CURVES, CURVES[0], 0.3)
    np.testing.assert_allclose(preserved, [1, 0.75 / 0.8, 0.5], rtol=1e-6)
    with pytest.raises(ValueError, match=r"level 0\.4 is none"):
        preserved_accuracy(LEVELS, CURVES, CURVES[0], 0.4)


def test_mistakes():
    ideal = envelope(CURVES)
    with pytest.raises(ValueError, match="must rise"):
        robustness_area(LEVELS[::-1], CURVES, ideal)
    with pytest.raises(ValueError, match="shapes"):
        robustness_area(LEVELS[:3], CURVES, ideal)
    with pytest.raises(ValueError, match="two levels"):
        robustness_area(LEVELS[:1], CURVES[:, :1], ideal[:1])
