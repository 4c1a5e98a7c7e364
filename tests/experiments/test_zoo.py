"""The zoo: what counts as a refusal, and processes that die or hang."""

import sys

import jax
import numpy as np
import pytest

import jaxeff
from experiments.zoo import __main__ as zoo
from experiments.zoo.cells import COLUMNS, Cell, tried


def misspelt(s):
    return jaxeff.noisy(lambda p, x: x @ p["w"], {"nowhere": jaxeff.Additive(1.0)})(
        jax.random.key(0), {"w": np.eye(2, dtype=np.float32)}, np.ones((1, 2), np.float32)
    )


def broken(s):
    return {}["x"]


def test_errors_of_the_library_are_refusals_and_others_crashes(monkeypatch):
    monkeypatch.setitem(COLUMNS, "misspelt", misspelt)
    monkeypatch.setitem(COLUMNS, "broken", broken)
    monkeypatch.setitem(COLUMNS, "fine", lambda s: Cell("right", 1.0))
    refused = tried("misspelt", None)
    assert refused.status == "refused"
    assert "nowhere" in refused.words
    assert tried("broken", None) == Cell("crash", None, "KeyError: 'x'")
    assert tried("fine", None).number == 1.0


@pytest.mark.process
def test_a_process_that_dies_or_hangs_costs_one_cell(tmp_path, monkeypatch):
    worker = tmp_path / "worker"
    worker.write_text(
        '#!/bin/sh\nshift 3\nfor column in "$@"; do\n'
        "[ $column = dies ] && exit 7\n[ $column = hangs ] && exec sleep 60\n"
        'echo "{\\"column\\": \\"$column\\", \\"status\\": \\"right\\"}"\ndone\n'
    )
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    found = list(zoo._row("net", ["a", "dies", "b", "hangs", "c"], 5.0))
    assert [(column, cell["status"]) for column, cell in found] == [
        ("a", "right"), ("dies", "crash"), ("b", "right"), ("hangs", "slow"), ("c", "right"),
    ]  # fmt: skip
    assert "7" in found[1][1]["words"]
