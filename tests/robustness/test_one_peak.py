"""Silverman's test: how often it errs on one peak, and that it finds two."""

import jax
import numpy as np
import pytest

from jaxeff.robustness import one_peak_pvalue

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("draw", [RNG.normal, RNG.exponential])
def test_one_peak_is_seldom_refused(draw):
    pvalues = [one_peak_pvalue(KEY, draw(size=150), draws=40) for _ in range(20)]
    # 1 in 20 below .05 is expected at most, the test being cautious: 5 or more has p < .003
    assert np.sum(np.array(pvalues) < 0.05) < 5
    assert np.mean(pvalues) > 0.2


def test_two_peaks_are_found_whatever_their_scale():
    values = np.concatenate([RNG.normal(size=200), RNG.normal(4, 0.7, 100)])
    assert one_peak_pvalue(KEY, values, draws=99) == 1 / 100
    assert one_peak_pvalue(KEY, 1e-6 * values + 7, draws=99) == 1 / 100


def test_two_bumps_that_run_into_each_other_are_one_peak():
    values = np.concatenate([RNG.normal(size=200), RNG.normal(1.2, 1, 200)])  # 1.2 < 2 deviations
    assert one_peak_pvalue(KEY, values, draws=99) > 0.05


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: one_peak_pvalue(KEY, np.ones(50)), ValueError, "1 different values"),
        (lambda: one_peak_pvalue(KEY, np.array([1.0, np.nan])), ValueError, "1 values aren't"),
        (lambda: one_peak_pvalue(KEY, RNG.normal(size=50), draws=0), ValueError, "draws must be"),
        (lambda: one_peak_pvalue(0, RNG.normal(size=50)), TypeError, "key"),
    ],
)
def test_mistakes_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
