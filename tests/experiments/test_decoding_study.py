"""The study of decoding: products on a modelled core."""

import pytest

from experiments.beyond.decoding.cores import modelled
from experiments.beyond.decoding.products import FORMATS, SETTINGS


@pytest.mark.slow
def test_the_kernel_that_multiplies_is_modelled():
    inputs, outputs = 256, 64
    rows = list(modelled(1, (inputs, outputs)))
    assert [row["format"] for row in rows] == [form for form in FORMATS if form in SETTINGS]
    for row in rows:
        # At least a multiplication for each sixteen products of bytes, at one a cycle.
        assert row["multiplying"] >= inputs * outputs / 16
        assert row["cycles"] >= row["multiplying"]
