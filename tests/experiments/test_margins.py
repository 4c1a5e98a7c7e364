"""Margins hold what noise makes of a difference: of 95 in 100 differences of nothing."""

import numpy as np
import pytest

from experiments import margins
from jaxeff.uncertainty import auroc


@pytest.mark.parametrize("counts", [(2,), (5,), (2, 2), (3, 8)])
def test_a_margin_is_exceeded_by_chance_as_often_as_it_says(counts):
    rng = np.random.default_rng(0)
    trials = 4000
    beyond = 0
    for _ in range(trials):
        samples = [rng.normal(size=count) for count in counts]
        means = [float(np.mean(one)) for one in samples]
        beyond += abs(means[0] - sum(means[1:])) > margins.margin(*samples)
    # Four standard errors of a share of .05 in so many trials.
    assert beyond / trials == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / trials) ** 0.5)


def test_standard_deviations_give_the_margin_of_their_samples():
    samples = [[0.1, 0.4, 0.3], [0.2, 0.9, 0.7]]
    margin = margins.of_spreads(3, *(float(np.std(one)) for one in samples))
    assert margin == pytest.approx(margins.margin(*samples))
    assert margins.of_spreads(1, 0.0, 0.0) is None


def test_one_value_has_no_margin_but_that_of_its_images():
    assert margins.margin([0.5], [0.6]) is None
    expected = 2 * (0.5 * 0.5 / 100 + 0.6 * 0.4 / 100) ** 0.5
    assert margins.of_accuracies(100, [0.5], [0.6]) == pytest.approx(expected)
    assert margins.of_accuracies(100, [0.5, 0.6], [0.6, 0.7]) == margins.margin(
        [0.5, 0.6], [0.6, 0.7]
    )


def test_pairs_are_those_of_one_name():
    assert margins.paired([(0, 3.0), (1, 4.0), (2, 9.0)], [(1, 1.0), (0, 2.0)]) == [1.0, 3.0]


def test_the_error_of_an_auroc_is_that_of_its_draws():
    rng = np.random.default_rng(0)
    inside, outside, trials = 80, 60, 400
    values = [
        float(auroc(rng.exponential(1, inside), rng.exponential(3, outside))) for _ in range(trials)
    ]
    # Hanley and McNeil's is exact for exponential scores; a deviation of so many draws is known
    # to 1 / sqrt(2 trials).
    margin = margins.auroc_error(float(np.mean(values)), inside, outside)
    assert margin == pytest.approx(np.std(values), rel=4 / (2 * trials) ** 0.5)
