"""The comparison of effective samples per second: what is counted, and that rounds are kept."""

import json

import pytest
from typer.testing import CliRunner

from experiments.ess import __main__ as study

RECORD = {
    "compile_s": 1.0, "warmup_s": 4.0, "sampling_s": 5.0, "warmup_gradients": 10,
    "sampling_gradients": 20, "divergences": 0, "min_ess": 50.0, "median_ess": 100.0,
    "max_rhat": 1.01,
}  # fmt: skip


@pytest.fixture
def runs(monkeypatch):
    """Stands in for the processes; what they would have measured, and which were run."""
    measured = {"numpyro": RECORD, "jaxeff": RECORD | {"min_ess": 150.0, "median_ess": 150.0}}
    done = []

    def run(command, path):
        done.append((command["contender"], command["seed"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {"command": command, "measured": measured[command["contender"]]}
        path.write_text(json.dumps(content))

    monkeypatch.setattr(study, "_run", run)
    return measured, done


def invoke(folder, *options):
    result = CliRunner().invoke(study.app, ["--results", str(folder), *options])
    assert result.exit_code == 0, result.output
    report = json.loads((folder / "ess.json").read_text())
    return report["rows"], {c["name"].split(" over")[0]: c for c in report["checks"]}


def test_rates_ratios_and_rounds(tmp_path, runs):
    _, done = runs
    rows, checks = invoke(tmp_path, "--rounds", "2")
    assert done == [("numpyro", 0), ("jaxeff", 0), ("numpyro", 1), ("jaxeff", 1)]
    assert rows[0]["min_ess_per_s"] == 5.0
    assert rows[0]["min_ess_per_sampling_s"] == 10.0
    assert checks["min_ess_per_s"]["ours"] == 3.0
    assert checks["min_ess_per_s"]["passed"]
    assert not checks["median_ess_per_sampling_s"]["passed"]
    invoke(tmp_path, "--rounds", "3")
    assert done[4:] == [("numpyro", 2), ("jaxeff", 2)]


def test_chains_that_have_not_converged_count_for_nothing(tmp_path, runs):
    measured, _ = runs
    measured["jaxeff"] = RECORD | {"max_rhat": 1.06}
    rows, checks = invoke(tmp_path, "--rounds", "1")
    assert rows[1]["median_ess_per_s"] == 0
    assert not any(check["passed"] for check in checks.values())
