"""What one test sets in the environment, no later test's processes inherit."""

import os

LEFT_BEHIND = "JAXEFF_LEFT_BEHIND_BY_A_TEST"


def test_one_test_sets_a_variable():
    assert LEFT_BEHIND not in os.environ
    os.environ[LEFT_BEHIND] = "1"
    os.environ["PATH"] += ":/left/behind"


def test_the_next_test_does_not_see_it():
    assert LEFT_BEHIND not in os.environ
    assert "/left/behind" not in os.environ["PATH"]
