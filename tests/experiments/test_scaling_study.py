"""The scaling study: what is counted, what is made of it, and going on after a kill."""

import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.engines import PACKAGES
from experiments.harness import Refused, Report
from experiments.scaling import engines, findings, machine, plan, workers
from experiments.scaling.problem import Configuration, Settings, analytic_macs, make_problem
from jaxeff.data import REGIMES

TINY = Settings(warmup=2, samples=2, doublings=2, epochs=1, rounds=1)
CEILINGS = {
    "peak": 1e11,
    "bandwidths": {"L2": 2e11, "L3": 1e11, "DRAM": 1e10},
    "working_sets": {},
}


def test_gradients_take_three_products_but_for_the_inputs():
    assert analytic_macs((1, 50, 2), 10) == 10 * (2 * 50 + 3 * 100)


def test_more_examples_keep_the_regimes():
    small, large = (make_problem(Configuration(examples=n)) for n in (96, 384))
    assert (len(small.y), len(large.y)) == (96, 384)
    for regime in REGIMES:
        shares = [np.mean((regime.start < p.x) & (p.x < regime.stop)) for p in (small, large)]
        assert shares[0] == shares[1] > 0
    with pytest.raises(ValueError, match="97 examples"):
        make_problem(Configuration(examples=97))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # Pyro's JIT
@pytest.mark.parametrize(
    ("engine", "method"),
    [("blackjax", "mcmc"), ("tfp", "svi"), ("pyro", "mcmc"), ("pyro", "svi")],
)
def test_engines_do_the_work_of_the_formula(engine, method):
    for package in PACKAGES.get(engine, ()):
        pytest.importorskip(package)
    point = Configuration(depth=2, width=8)
    session = engines.prepare(engine, method, make_problem(point), TINY)
    macs = analytic_macs(point.widths, point.examples if method == "mcmc" else TINY.batch)
    assert session.work.macs == macs
    assert 2 * macs < session.work.flops < 12 * macs
    counts = session.run()
    if method == "svi":
        assert counts == [point.examples // TINY.batch]
    else:
        assert (len(session.warmup), len(counts)) == (2, 2)
        assert all(1 <= n <= 3 for n in counts)


def made(engine, method, point, doublings=6):
    """A row as the source would have it: linear work, MCMC a hundred times SVI's."""
    n, size = point.examples, point.parameters
    mcmc = method == "mcmc"
    flops, steps = (6.0 * n * size, 9450) if mcmc else (6.0 * 48 * size, 90 * n / 48)
    ms = size**1.5 / 1e3 if mcmc else size / 1e4
    if engine == "pyro":
        ms += 100.0
    intensity = size / 1e4 * (n / 192 if mcmc else 0.1)
    return {
        **{"engine": engine, "method": method, "doublings": doublings, "parameters": size},
        **{"depth": point.depth, "width": point.width, "examples": n},
        **{"macs": 1, "analytic_macs": 1, "flops": flops, "total_flops": steps * flops},
        **{"ms": ms if mcmc else ms / 10, "ms_per_evaluation": ms, "held": 1, "peak_mb": 1.0},
        **{"intensity": intensity, "gflops": 5e10 * intensity / 1e9, "step_size": 0.01},
        **{"warmup_evaluations": 10, "per_iteration": [63] * 5},
    }


def ideal(*names):
    return [
        made(engine, method, task.configuration)
        for task in replace(plan.SIZES["default"], engines=names, deeper=False).tasks()
        for engine, method in task.contestants
    ]


def failures(rows):
    report = Report("scaling", "default", {}, rows, {"ceilings": CEILINGS})
    findings.judge(report)
    assert report.checks
    return {check["name"] for check in report.checks if not check["passed"]}


def test_the_sources_claims_hold_where_they_should():
    rows = ideal("numpyro", "tfp", "pyro")
    for row in rows:  # Pyro's overhead is no share of how latency grows with the network
        if row["engine"] == "pyro" and row["method"] == "svi":
            row["ms"] = row["parameters"] / 1e5
    assert failures([r for r in rows if r["engine"] != "pyro"]) == set()
    assert not {name for name in failures(rows) if "Pyro" in name}


@pytest.mark.parametrize(
    ("key", "change", "name"),
    [
        ("macs", lambda row: 2, "matrix products"),
        ("total_flops", lambda row: row["total_flops"] ** 1.5, "exponent farthest"),
        ("flops", lambda row: 2 * row["flops"], "largest over smallest engine"),
        ("total_flops", lambda row: row["total_flops"] * (1e3 if row["doublings"] else 1), "MCMC"),
        ("intensity", lambda row: 1 / row["intensity"], "operational intensity"),
        ("gflops", lambda row: 1e3 * row["gflops"], "DRAM and the L3"),
        ("ms", lambda row: row["parameters"] ** -1.0, "latency over parameters"),
    ],
)
def test_each_claim_can_fail(key, change, name):
    rows = ideal("numpyro", "tfp")
    for row in rows:
        if row["engine"] == "numpyro" and row["method"] == "mcmc":
            row[key] = change(row)
    assert any(name in failed for failed in failures(rows))


def test_growth_is_that_of_a_power():
    rows = [{"n": n, "cost": 3 * n**1.3} for n in (1.0, 4.0, 9.0)]
    assert findings.growth(rows, "n", "cost") == (pytest.approx(1.3), pytest.approx(1))


def test_times_are_those_of_the_samples():
    row = {"method": "mcmc", "warmup_evaluations": 10, "flops": 2e6, "bytes": 1e6}
    settings = Settings(warmup=2, samples=2)
    measured = [([9, 9, 3, 7], seconds, 0.5, 5e6) for seconds in (0.28, 0.14, 0.14)]
    found = workers._timing(row, measured, settings)
    assert (found["evaluations"], found["per_iteration"]) == (20, [3, 7])
    assert found["total_flops"] == 4e7
    assert found["ms"] == pytest.approx(35)
    assert found["gflops"] == pytest.approx(2e6 * 28 / 0.14 / 1e9)
    assert (found["intensity"], found["peak_mb"]) == (2, 5)


def test_ceilings_are_measured(monkeypatch):
    monkeypatch.setattr(machine, "SIDE", 64)
    monkeypatch.setattr(machine, "working_sets", lambda: {"L2": 2**14, "DRAM": 2**22})
    found = machine.ceilings(1)
    assert found["peak"] > 0
    assert all(math.isfinite(speed) and speed > 0 for speed in found["bandwidths"].values())


def test_an_engine_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(PACKAGES, "pyro", ("torch", "nowhere"))
    with pytest.raises(Refused, match=r"pyro needs .*nowhere: pip install"):
        replace(plan.SIZES["fast"], engines=("pyro",)).settled()
    assert "pyro" not in plan.SIZES["fast"].settled().engines
