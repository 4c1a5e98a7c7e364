"""Guided repetition: budgets are met, and who is more sensitive never gets less."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxeff.robustness import allocate_repetitions

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
    found = allocate_repetitions({"a": 0.25, "b": 0.5, "c": 1.0, "d": 1.0}, 16)
    assert found == {"a": 8, "b": 4, "c": 2, "d": 2}


def test_bad_budgets_and_midpoints_are_named():
    with pytest.raises(ValueError, match="budget of 1 executions is less than one for each of 2"):
        allocate_repetitions({"a": 1.0, "b": 1.0}, 1)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="midpoint of 'b' must be positive"):
            allocate_repetitions({"a": 1.0, "b": bad}, 4)
