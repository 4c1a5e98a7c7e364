"""The sensitivity study: rankings, what is beyond the levels, and midpoints from another study."""

import json

import numpy as np
import pytest

from experiments.beyond.sensitivity import __main__ as sensitivity
from experiments.beyond.sensitivity import measures
from experiments.beyond.sensitivity.__main__ import SIZES, STUDY
from experiments.harness import Refused, Report
from experiments.trainable import Network
from jaxeff.robustness import fit_midpoint, logistic

LEVELS = np.logspace(-1, 3, 9)
SITES = ("input", "fc1", "relu", "fc2")
CASE = "mlp-mnist"
PROBLEMS = [s for s in SIZES["default"].sweeps if (s.kind, s.where) == ("add", "layers")]


def rows_of(measure, levels, seed=0):
    return [
        {
            "case": CASE,
            "measure": measure,
            "site": s,
            "level": x,
            "seed": seed,
            "seconds": 2.0,
            "updates": 100,
        }
        for s, x in zip(SITES, levels, strict=True)
    ]


@pytest.fixture
def rows():
    levels = rows_of(measures.WALKING, [0.5, 3.0, 2.0, np.inf], seed=None)
    for seed in (0, 1):
        levels += rows_of("divergence", [0.1, 0.9, 0.6, 40.0], seed)
        levels += rows_of("walking at evaluation", [9.0, 3.0, 4.0, 1.0], seed)
        levels += rows_of("budget, trained net", [0.1, np.nan, 0.6, np.inf], seed)
        levels += rows_of("budget, in training", [0.1, 0.2, 0.3, 0.4 if seed else 0.05], seed)
    return levels


@pytest.mark.slow
def test_rankings_hold_what_lies_beyond_the_levels(rows):
    table = {r["measure"]: r for r in sensitivity.compare(rows, "fast")}
    assert table["divergence"]["spearman"] == pytest.approx(1)
    assert table["walking at evaluation"]["spearman"] == pytest.approx(-1)
    assert table["walking at evaluation"]["most_sensitive"] == "fc2"
    assert table["budget, trained net"]["slots"] == 3  # an unknown level has no rank
    # Medians rank 1, 2, 4, 3 against 1, 3, 2, 4; the seeds 2, 3, 4, 1 and 1, 2, 3, 4.
    assert table["budget, in training"]["spearman"] == pytest.approx(1 - 6 * 6 / 60)
    assert table["budget, in training"]["between_seeds"] == pytest.approx(1 - 6 * 12 / 60)
    assert table[measures.WALKING]["spearman"] is None
    # The trained networks themselves tolerate the reverse of what walking noise teaches.
    assert table["divergence"]["spearman_evaluation"] == pytest.approx(-1)
    assert table[measures.WALKING]["spearman_evaluation"] == pytest.approx(-1)
    report = Report("sensitivity", "default", {}, [*table.values()])
    STUDY.judge(report)
    assert [c["passed"] for c in report.checks] == [True, False, True, False, False, False]


def test_rows_are_json_and_come_back(rows):
    plain = [sensitivity.plain(row) for row in rows]
    json.dumps(plain, allow_nan=False)
    assert plain[3]["level"] is None
    assert plain[3]["beyond"]
    returned = [sensitivity.restored(row) for row in plain]
    levels, restored = ([row["level"] for row in r] for r in (rows, returned))
    np.testing.assert_array_equal(levels, restored)


def test_midpoints_of_the_walking_noise_study(tmp_path):
    curves = {
        "input": logistic(LEVELS, 2.0, 0.6, 0.9, 0.1, "log"),
        "fc1": np.full(9, 0.9),
        "relu": np.full(9, 0.1),
        "fc2": np.where(LEVELS > 10, 0.1, 0.9),
    }
    fits = {s: fit_midpoint(LEVELS, c, chance=0.1, scale="log") for s, c in curves.items()}
    recorded = [
        {"case": CASE, "kind": "add", "where": "layers", "site": s, **fit.record()}
        for s, fit in fits.items()
    ]
    path = tmp_path / "walking_noise.json"
    path.write_text(json.dumps({"midpoints": recorded}, allow_nan=False))
    problem = next(p for p in PROBLEMS if str(p.case) == CASE)
    network = Network(None, None, None, SITES)
    found = {r["site"]: r["level"] for r in measures.read(path, problem, network)}
    assert found == {s: measures.midpoint_level(fit) for s, fit in fits.items()}
    assert found["input"] == pytest.approx(2, rel=1e-3)
    assert found["fc1"] == np.inf
    assert found["relu"] == 0

    other = next(p for p in PROBLEMS if str(p.case) != CASE)
    assert measures.read(path, other, network) == []
    with pytest.raises(Refused, match="no midpoint of"):
        measures.read(path, problem, Network(None, None, None, (*SITES, "fc9")))
    path.write_text("{}")
    with pytest.raises(Refused, match="walking-noise study"):
        measures.read(path, problem, network)


def test_a_budgets_size_is_shared_among_the_slots():
    tolerated = np.array([0.1, 10.0, np.inf, 0.0])
    assert measures.total_level(tolerated) == pytest.approx(np.sqrt(measures.BUDGET) / 2)
