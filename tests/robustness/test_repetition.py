"""Guided repetition: budgets are met, and who is more sensitive never gets less."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxeff.robustness import Midpoint, allocate_repetitions

MIDPOINTS = st.lists(st.floats(1e-3, 1e3) | st.just(float("inf")), min_size=1, max_size=20)


@given(MIDPOINTS, st.integers(0, 60))
def test_the_budget_is_met_and_sensitive_layers_get_more(midpoints, extra):
    sites = {f"layer{i}": m for i, m in enumerate(midpoints)}
    times = allocate_repetitions(sites, len(midpoints) + extra)
    assert list(times) == list(sites)
    found = np.array(list(times.values()))
    assert found.sum() == len(midpoints) + extra
    assert found.min() >= 1
    order = np.argsort(midpoints, kind="stable")
    assert (np.diff(found[order]) <= 0).all()


def test_shares_are_proportional_to_sensitivity():
    repetitions = allocate_repetitions({"a": 0.25, "b": 0.5, "c": 1.0, "d": 1.0}, 16)
    assert repetitions == {"a": 8, "b": 4, "c": 2, "d": 2}


def test_bad_budgets_and_midpoints_are_named():
    with pytest.raises(ValueError, match="budget of 1 executions is less than one for each of 2"):
        allocate_repetitions({"a": 1.0, "b": 1.0}, 1)
    for bad in (0.0, -1.0):
        with pytest.raises(ValueError, match="midpoint of 'b' must be positive"):
            allocate_repetitions({"a": 1.0, "b": bad}, 4)


def midpoint(mu, bracket=(np.nan, np.nan)):
    return Midpoint(mu, 0.1, 0.1, 1.0, 0.1, bracket, 0.9, "linear", "")


def test_midpoints_that_were_not_found_get_a_share_that_is_said():
    midpoints = {"a": 1.0, "b": None, "c": float("nan"), "d": 3.0, "e": midpoint(2.0)}
    with pytest.warns(UserWarning, match=r"nothing is known of 'b', 'c', counted as 2, the median"):
        repetitions = allocate_repetitions(midpoints, 60)
    assert repetitions == allocate_repetitions(
        {"a": 1.0, "b": 2.0, "c": 2.0, "d": 3.0, "e": 2.0}, 60
    )


def test_a_failed_fit_counts_by_where_its_midpoint_lies():
    fits = {
        "beyond": midpoint(np.nan, (4.0, np.inf)),
        "below": midpoint(np.nan, (0.0, 0.5)),
        "between": midpoint(np.nan, (1.0, 4.0)),
        "known": 1.0,
    }
    with pytest.warns(UserWarning, match="'beyond' counts as 4, the highest level measured; 'bel"):
        repetitions = allocate_repetitions(fits, 40)
    plain = {"beyond": 4.0, "below": 0.5, "between": 2.0, "known": 1.0}
    assert repetitions == allocate_repetitions(plain, 40)


def test_layers_of_which_nothing_is_known_are_alike():
    with pytest.warns(UserWarning, match="nothing is known of 'a', 'b', counted alike"):
        assert allocate_repetitions({"a": None, "b": None}, 6) == {"a": 3, "b": 3}
