"""What is made of times: medians, shares, and nothing of the virtual machine's own."""

import pytest
from jaxeff_export.bundle.running import OperatorTime, Timing
from jaxeff_export.bundle.running._timing import operator_times


def test_an_operators_time_is_the_median_of_its_measurements():
    quiet = [("dense", 4, 6_000_000), ("relu", 8, 2_000_000), ("vm.builtin.alloc", 40, 9_000_000)]
    disturbed = [("dense", 4, 6_000_000), ("relu", 8, 900_000_000)]
    assert operator_times([quiet, disturbed, quiet], number=4) == (
        OperatorTime("dense", 1.0, 1.5, 0.75),
        OperatorTime("relu", 2.0, 0.5, 0.25),
    )
    assert operator_times([[]], number=4) == ()
    shown = str(operator_times([quiet], number=4))
    assert "75%" in shown
    assert "total" in shown


def test_a_timing_is_quoted_by_its_median():
    timing = Timing("local", 10, (1.0, 9.0, 2.0))
    shown = "local: median 2 ms of 3 measurements, 1 to 9 ms, 10 calls each"
    assert str(timing) == repr(timing) == shown
    assert timing.median_ms == 2.0
    assert timing.spread_ms == pytest.approx(8.0)
