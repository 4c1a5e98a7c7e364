"""Peaks and valleys of known densities."""

import numpy as np
import pytest
from scipy import stats

from jaxeff.robustness import peaks

rng = np.random.default_rng(0)
NORMAL = rng.normal(size=20_000)


def two(distance, share=0.5):
    return np.where(rng.random(20_000) < share, NORMAL, NORMAL + distance)


@pytest.mark.parametrize("values", [NORMAL, rng.exponential(size=20_000), rng.uniform(size=9_000)])
def test_one_peak(values):
    modes = peaks(values)
    assert modes.valley > 0.9
    assert peaks(NORMAL, scale="log").valley == 1


@pytest.mark.parametrize(("distance", "share"), [(3.0, 0.5), (4.0, 0.3), (8.0, 0.7)])
def test_two_peaks(distance, share):
    modes = peaks(two(distance, share))
    between = np.linspace(0, distance, 999)
    density = share * stats.norm.pdf(between) + (1 - share) * stats.norm.pdf(between - distance)
    exact = density.min() / min(density[0], density[-1])
    # Scott's bandwidth widens each peak: the valley is filled to some extent.
    assert exact - 0.03 < modes.valley < exact + 0.12
    assert modes.two
    np.testing.assert_allclose([modes.low, modes.high], [0, distance], atol=0.4)


def test_magnitudes_and_zeros():
    signs = rng.choice([-1, 1], 20_000)
    values = np.concatenate([signs * np.exp(two(6.0) / 2), np.zeros(5_000)])
    modes = peaks(values, scale="log")
    assert modes.zero == 0.2
    assert modes.valley < 0.1
    np.testing.assert_allclose([modes.low, modes.high], [1, np.exp(3)], rtol=0.3)


def test_what_has_no_density_is_named():
    with pytest.raises(ValueError, match="2 different values"):
        peaks(np.repeat([0.0, 1.0], 50))
    with pytest.raises(ValueError, match="1 values aren't finite"):
        peaks(np.array([1.0, np.nan]))
