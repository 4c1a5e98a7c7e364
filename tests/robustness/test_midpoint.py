"""The midpoint: what it recovers, and what it refuses to invent."""

import numpy as np
import pytest

from jaxeff.robustness import fit_midpoint, logistic

LEVELS = np.logspace(-2, 2, 17)


def curve(mu, slope=None, a_max=0.97, a_min=0.1, levels=LEVELS, scale="linear"):
    return logistic(levels, mu, slope or mu / 4, a_max, a_min, scale)


def test_the_logistic_is_the_sources():
    sigma, mu, s, a_max, a_min = np.linspace(0, 3, 7), 1.2, 0.3, 0.9, 0.1
    half = (a_max - a_min) / 2
    np.testing.assert_allclose(
        logistic(sigma, mu, s, a_max, a_min), 2 / (1 + np.exp((sigma - mu) / s)) * half + a_min
    )
    assert logistic(mu, mu, s, a_max, a_min) == pytest.approx(0.5)


@pytest.mark.parametrize("scale", ["linear", "log"])
@pytest.mark.parametrize("mu", [0.05, 1.3, 40.0])
def test_recovers_an_exact_curve(mu, scale):
    fitted = fit_midpoint(LEVELS[::-1], curve(mu, 0.25 * mu if scale == "linear" else 0.8,
                                             scale=scale)[::-1], scale=scale)  # fmt: skip
    assert fitted.exists
    assert fitted.mu == pytest.approx(mu, rel=1e-4)
    assert fitted.mu_std < 1e-3 * mu
    assert fitted.message == ""
    if mu < 40:  # beyond, the levels don't reach the bottom of the log curve
        assert (fitted.a_max, fitted.a_min) == pytest.approx((0.97, 0.1), abs=2e-3)


def test_levels_over_eighteen_decades():
    levels = np.concatenate([[0.0], np.logspace(-8, 10, 37)])
    fitted = fit_midpoint(levels, curve(3e4, 1e4, levels=levels))
    assert fitted.mu == pytest.approx(3e4, rel=1e-3)


@pytest.mark.parametrize("tail", [1, 2, 4])
def test_long_tails_have_a_midpoint_on_the_scale_that_describes_them(tail):
    levels = np.concatenate([[0.0], LEVELS])  # zero has a place on the log scale, too
    heavy = 0.1 + 0.87 / (1 + (levels / 0.7) ** tail)
    fitted = fit_midpoint(levels, heavy, chance=0.1, scale="log")
    assert fitted.mu == pytest.approx(0.7, rel=1e-4)
    assert fitted.a_max == pytest.approx(0.97, abs=1e-4)
    linear = fit_midpoint(levels, heavy, chance=0.1)
    if tail == 4:
        assert linear.mu == pytest.approx(0.7, rel=0.05)
    else:  # the best fit's midpoint lies far below, where the curve has not fallen yet
        assert not linear.exists
        assert "scale='log'" in linear.message
        assert linear.bracket == pytest.approx((10**-0.25, 1))


def test_standard_errors_cover():
    # Independent noise on the accuracies: the stated error is that of the estimates.
    rng = np.random.default_rng(0)
    truth, errors, scatter = curve(1.0, 0.4), [], []
    for _ in range(60):
        fitted = fit_midpoint(LEVELS, truth + rng.normal(0, 0.02, LEVELS.shape))
        errors.append(fitted.mu - 1)
        scatter.append(fitted.mu_std)
    # The ratio of two standard deviations from 60 estimates has a standard error of 9 %.
    assert np.std(errors) / np.mean(scatter) == pytest.approx(1, abs=0.3)

    errors, scatter = [], []
    for _ in range(30):  # midpoints that differ from seed to seed
        seeds = np.stack([curve(mu, 0.4) for mu in rng.normal(1, 0.1, 8)])
        fitted = fit_midpoint(LEVELS, seeds)
        errors.append(fitted.mu - 1)
        scatter.append(fitted.mu_std)
    assert np.mean(scatter) == pytest.approx(0.1 / np.sqrt(8), rel=0.25)
    assert np.std(errors) / np.mean(scatter) == pytest.approx(1, abs=0.4)


def test_weights_and_a_given_chance_level():
    truth = curve(1.0, 0.3)
    bad = truth.copy()
    bad[8] += 0.3
    sigma = np.where(np.arange(17) == 8, 10.0, 0.01)
    assert fit_midpoint(LEVELS, bad, sigma).mu == pytest.approx(1, rel=0.02)
    assert abs(fit_midpoint(LEVELS, bad).mu - 1) > 0.02
    upper = LEVELS < 2  # the bottom of the curve was not measured
    fitted = fit_midpoint(LEVELS[upper], truth[upper], chance=0.1)
    assert fitted.mu == pytest.approx(1, rel=1e-3)
    assert fitted.a_min == 0.1


def test_a_step_is_known_to_lie_between_two_levels():
    step = np.where(LEVELS < 1.5, 0.9, 0.1)
    fitted = fit_midpoint(LEVELS, step)
    assert fitted.bracket == pytest.approx((1, 10**0.25))
    assert fitted.bracket[0] < fitted.mu < fitted.bracket[1]
    assert fitted.mu_std == pytest.approx((10**0.25 - 1) / np.sqrt(12))
    assert "between 1 and 1.77828" in fitted.message
    # Seeds that agree don't make it any better known.
    assert fit_midpoint(LEVELS, np.stack([step, step])).mu_std == fitted.mu_std


@pytest.mark.parametrize(
    ("accuracies", "why"),
    [
        (np.full(17, 0.1), "flat"),
        (np.linspace(0.95, 0.93, 17), "flat"),
        (curve(1e4, 3e3), "flat"),
        (curve(150.0, 40.0, a_min=0.0), "outside of the levels"),
        (curve(1e-3), "flat"),
        (np.linspace(0.2, 0.9, 17), "highest level"),
        (np.where(LEVELS > 30, np.nan, 0.9), "flat"),
        (np.where(LEVELS > 0.05, np.nan, 0.9), "too few points: 3"),
        (np.tile([0.9, 0.1], 9)[:17][::-1].copy(), "highest level"),
        (np.append(np.tile([0.9, 0.3], 8), 0.1), "doesn't describe"),
        (np.where(np.arange(17) == 9, 0.9, 0.1), "doesn't fall"),
    ],
)
def test_no_midpoint_is_made_up(accuracies, why):
    fitted = fit_midpoint(LEVELS, accuracies, chance=None)
    assert not fitted.exists
    assert np.isnan(fitted.mu)
    assert np.isnan(fitted.mu_std)
    assert why in fitted.message
    assert fitted.record()["mu"] is None


def test_where_a_midpoint_lies_that_is_not_found():
    beyond, below = (100.0, np.inf), (0.0, pytest.approx(0.01))
    assert fit_midpoint(LEVELS, curve(150.0, 40.0)).bracket == beyond
    assert fit_midpoint(LEVELS, np.linspace(0.9, 0.8, 17), chance=0.1).bracket == beyond
    assert fit_midpoint(LEVELS, np.full(17, 0.9), chance=0.1).bracket == beyond
    assert fit_midpoint(LEVELS, np.full(17, 0.1), chance=0.1).bracket == below
    assert fit_midpoint(LEVELS, np.linspace(0.25, 0.1, 17) ** 2, chance=0.1).bracket == below
    assert np.isnan(fit_midpoint(LEVELS, np.full(17, 0.9)).bracket).all()  # chance is unknown


def test_diverged_replicates_are_left_out_and_named():
    rows = np.stack([curve(1.0)] * 3)
    rows[1, 5:] = np.nan
    fitted = fit_midpoint(LEVELS, rows)
    assert fitted.mu == pytest.approx(1, rel=1e-3)
    assert "12 of 51 accuracies are NaN" in fitted.message


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((LEVELS, np.zeros(3)), r"\(3,\)"),
        ((-LEVELS, curve(1.0)), "at least 0"),
        (([1.0, 1.0], [0.5, 0.4]), "given twice"),
        ((LEVELS, curve(1.0), np.zeros(17)), "positive standard deviation"),
    ],
)
def test_mistakes(arguments, match):
    with pytest.raises(ValueError, match=match):
        fit_midpoint(*arguments)
    with pytest.raises(ValueError, match="scale"):
        fit_midpoint(LEVELS, curve(1.0), scale="cubic")
