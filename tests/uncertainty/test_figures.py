import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jaxeff.uncertainty import (
    RegressionUncertainty,
    Reliability,
    draw_plane,
    draw_regression,
    draw_reliability,
    draw_risk_coverage,
    risk_coverage,
)


@pytest.fixture
def axes():
    figure, axes = plt.subplots(2, 3)
    yield axes.ravel()
    plt.close(figure)


def line(axis, label):
    (found,) = [each for each in axis.get_lines() if each.get_label() == label]
    return found.get_ydata()


@pytest.mark.slow
def test_a_regression_is_drawn_in_three_rows_of_standard_deviations(axes):
    x = jnp.linspace(-1, 1, 5)
    parts = RegressionUncertainty(x[:, None], jnp.full((5, 1), 0.04), x[:, None] ** 2)
    true_std = jnp.array([0.3, 0.3, jnp.nan, 0.1, 0.1])
    draw_regression(axes[:3], x, parts, (x[:, None], 2 * x), true_std, 3 - x, target=x)
    np.testing.assert_allclose(line(axes[0], "training data"), 2 * x)
    band = axes[0].collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(1 + np.sqrt(1.04))
    np.testing.assert_allclose(line(axes[1], "predicted"), 0.2, rtol=1e-6)
    np.testing.assert_allclose(line(axes[1], "true"), true_std)
    np.testing.assert_allclose(line(axes[2], "epistemic"), jnp.abs(x))
    (beside,) = [a for a in axes[0].figure.axes if a.get_ylabel() == "neg. log KDE"]
    np.testing.assert_allclose(line(beside, "negative log density"), 3 - x)
    assert beside.get_lines()[0].get_linestyle() == "--"


@pytest.mark.slow
def test_a_plane_is_drawn_in_two_panels_on_one_scale(axes):
    grid = np.meshgrid(np.linspace(0, 4, 9), np.linspace(0, 2, 7))
    train = (np.array([[1.0, 1.0], [3.0, 1.0], [3.5, 1.5]]), np.array([0, 1, 1]))
    mean, information = draw_plane(axes[:2], grid, grid[0] / 4, grid[1] / 10, grid[0] > 3, train)
    assert (mean.levels[0], mean.levels[-1]) == (0, 1)
    assert information.levels[-1] == pytest.approx(np.log(2))
    boundary = axes[0].collections[-1].get_paths()[0].vertices
    np.testing.assert_allclose(boundary[:, 0], 2)  # where the probability is a half
    border = axes[1].collections[-1]
    assert border.get_paths()[0].vertices[:, 0].mean() == pytest.approx(3.25)
    assert [len(points.get_xdata()) for points in axes[1].get_lines()] == [1, 2]


def test_a_reliability_diagram_leaves_empty_bins_out(axes):
    diagram = Reliability(jnp.array([jnp.nan, 0.7]), jnp.array([jnp.nan, 0.6]), jnp.array([0, 5]))
    draw_reliability(axes[0], diagram)
    np.testing.assert_allclose(line(axes[0], "accuracy"), [0.6], rtol=1e-6)
    assert [bar.get_height() for bar in axes[0].patches] == [0, 1]


def test_risk_is_drawn_by_coverage(axes):
    curve = risk_coverage(jnp.array([0.0, 1.0]), jnp.array([0.0, 1.0]))
    draw_risk_coverage(axes[0], {"entropy": curve})
    np.testing.assert_allclose(line(axes[0], "entropy"), [0, 0.5])
