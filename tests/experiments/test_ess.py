"""The comparison of effective samples per second: what is counted, and what is made of it."""

from experiments.harness import Report
from experiments.scaling.ess import STUDY, rates

RECORD = {
    "compile_s": 1.0, "warmup_s": 4.0, "sampling_s": 5.0, "warmup_gradients": 10,
    "sampling_gradients": 20, "divergences": 0, "min_ess": 50.0, "median_ess": 100.0,
    "max_rhat": 1.01,
}  # fmt: skip


def judged(**ours):
    contenders = {"numpyro": RECORD, "jaxeff": RECORD | ours}
    rows = [rates({"contender": name, **record}) for name, record in contenders.items()]
    report = Report("ess", "default", {}, rows)
    STUDY.judge(report)
    return rows, {check["name"].split(" over")[0]: check for check in report.checks}


def test_rates_and_ratios():
    rows, checks = judged(min_ess=150.0, median_ess=150.0)
    assert rows[0]["min_ess_per_s"] == 5.0
    assert rows[0]["min_ess_per_sampling_s"] == 10.0
    assert checks["min_ess_per_s"]["ours"] == 3.0
    assert checks["min_ess_per_s"]["passed"]
    assert not checks["median_ess_per_sampling_s"]["passed"]


def test_chains_that_have_not_converged_count_for_nothing():
    rows, checks = judged(max_rhat=1.06)
    assert rows[1]["median_ess_per_s"] == 0
    assert not any(check["passed"] for check in checks.values())
