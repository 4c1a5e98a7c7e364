"""The comparison behind a self-check: rounding passes, anything else does not."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxeff_export.artifact import TensorSpec
from jaxeff_export.bundle.files import RecordedPair, compare, tolerance


def check(ours, theirs):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    spec = TensorSpec("y", theirs.shape, str(theirs.dtype))
    return compare("board", [spec], [[ours]], [RecordedPair([], [theirs])])


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(0, 1e-2))
def test_float32_passes_up_to_its_tolerance(scale, relative):
    theirs = np.array([scale, -scale / 3], np.float32)
    ours = theirs.astype(np.float64) + relative * float(theirs[0]) * np.array([0, 1])
    result = check(ours, theirs)
    assert result.max_relative_error == pytest.approx(relative, rel=1e-6, abs=1e-12)
    assert result.passed == (
        result.outputs[0].max_abs_error <= tolerance(theirs.dtype) * scale
    ) or (
        # the edge itself, where float32's rounding of the scale decides
        relative == pytest.approx(tolerance(theirs.dtype), rel=1e-5)
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([np.nan, 1.0], [1.0, 1.0]),
        ([np.inf, 1.0], [1.0, 1.0]),
        ([1.0, np.inf], [1.0, -np.inf]),
        ([1.0, 1.0], [1.0, -np.inf]),
    ],
)
def test_what_is_not_finite_must_be_the_same(ours, theirs):
    assert not check(np.float32(ours), np.float32(theirs)).passed


def test_equal_infinities_zeros_and_nothing_pass():
    assert check(np.float32([1, -np.inf]), np.float32([1, -np.inf])).passed
    assert check(np.zeros(3, np.float32), np.zeros(3, np.float32)).max_relative_error == 0
    assert check(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).passed
    assert not check(np.float32([1e-30]), np.float32([0])).passed


def test_tolerances_by_dtype():
    assert tolerance(np.dtype(np.int32)) == tolerance(np.dtype(bool)) == 0
    assert tolerance(np.dtype(np.float64)) < 1e-12 < tolerance(np.dtype(np.float32)) < 2e-4
    assert tolerance(np.dtype(np.float16)) < 1e-2 < tolerance(np.dtype(ml_dtypes.bfloat16)) < 0.1
    assert not check(np.int32([1, 2]), np.int32([1, 3])).passed
    assert check([True, False], [True, False]).passed
    assert not check([True, True], [True, False]).passed
    assert check(np.complex64([1 + 1j]), np.complex64([1 + 1j])).passed
