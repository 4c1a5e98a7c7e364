import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from jaxeff.robustness import fit_midpoint, logistic, summarize
from jaxeff.robustness.curves import (
    draw_contour,
    draw_curve,
    draw_heatmap,
    draw_histograms,
    draw_midpoints,
)

LEVELS = np.concatenate([[0.0], np.logspace(-2, 2, 12)])


@pytest.fixture
def axis():
    figure, axis = plt.subplots()
    yield axis
    figure.canvas.draw()  # whatever can't be drawn fails here
    plt.close(figure)


def fall(mu):
    return logistic(LEVELS, mu, mu / 4, 0.95, 0.1)


def test_a_curve_its_band_and_its_midpoint(axis):
    draws = np.stack([fall(0.9), fall(1.0), fall(1.1)])
    curve = summarize(LEVELS, draws)
    midpoint = fit_midpoint(LEVELS, draws)
    draw_curve(axis, curve, midpoint, label="net")
    fit, line, points = axis.get_lines()
    assert points.get_label() == f"net, μ = {midpoint.mu:.3g} ± {midpoint.mu_std:.2g}"
    np.testing.assert_allclose(points.get_ydata(), curve.mean)
    assert np.interp(midpoint.mu, *fit.get_data()) == pytest.approx(0.525, abs=0.01)
    assert line.get_xdata() == [midpoint.mu] * 2
    band = axis.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(curve.high.max())


def test_no_midpoint_is_drawn_where_there_is_none(axis):
    draws = np.full((2, len(LEVELS)), 0.9)
    draw_curve(axis, summarize(LEVELS, draws), fit_midpoint(LEVELS, draws))
    (points,) = axis.get_lines()
    assert "μ" not in points.get_label()


def test_a_bar_per_layer_and_a_cross_for_none(axis):
    midpoints = {mu: fit_midpoint(LEVELS, fall(mu)) for mu in (0.3, 1.0)}
    midpoints["flat"] = fit_midpoint(LEVELS, np.full(len(LEVELS), 0.9))
    draw_midpoints(axis, {str(k): m for k, m in midpoints.items()})
    bars = [bar.get_height() for bar in axis.patches]
    assert bars[:2] == pytest.approx([0.3, 1.0], rel=1e-3)
    (cross,) = [line for line in axis.get_lines() if line.get_marker() == "x"]
    assert list(cross.get_xdata()) == [2]


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_histograms_are_shares(axis, scale):
    values = np.array([0.0, 0.0, 1.0, -100.0])
    draw_histograms(axis, {"clean": values, "noisy": values + 3}, scale=scale)
    total = sum(bar.get_height() for bar in axis.containers[0])
    assert total == pytest.approx(1)
    labels = axis.get_legend_handles_labels()[1]
    assert ("50% zero" in labels[0]) == (scale == "log")


def test_contour_and_heatmap(axis):
    table = np.array([[0.9, 0.5, np.nan], [0.4, 0.3, 0.1]])
    image = draw_heatmap(axis, table, [0.1, 0.2], [1, 2, 3])
    assert [t.get_text() for t in axis.texts] == ["90.0", "50.0", "40.0", "30.0", "10.0"]
    assert image.get_clim() == (0.1, 0.9)
    other = axis.figure.add_subplot()
    filled = draw_contour(other, [0.1, 1.0], [1, 10, 100], table)
    assert filled.get_clim() == (0, 1)
    (points,) = other.get_lines()
    assert set(points.get_ydata()) == {0.1, 1.0}
