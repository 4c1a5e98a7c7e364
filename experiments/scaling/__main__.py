"""What Bayesian inference costs: FLOPs and latency, as networks and data grow.

    python -m experiments.scaling

NUTS (50 samples after 100 of warm-up) and mean-field SVI (150 epochs) of a multilayer perceptron on
the noisy sine, over depth, width and the size of the data set, by NumPyro; at the default point by
jaxeff as well. Source: Klein's thesis, section 7.5.3.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from experiments import harness as h
from experiments.harness import Report, Row, Run
from experiments.scaling import roofs
from experiments.scaling.engines import SESSIONS, Inference
from experiments.scaling.problem import EXAMPLES, Configuration, analytic_macs, make_problem

DEFAULT = Configuration()
DEEPER = 10
"""The depth that NUTS may reach by the default of every engine."""
HUNDRED, TWOFOLD = 100, 2
"""FLOPs of MCMC over those of SVI in the thesis, two orders of magnitude; how near is about it."""
RISES = 0.25
"""Exponent from which on a ratio counts as rising: noise alone is above zero half of the time."""
AXES = {"parameters": "parameters", "examples": "training examples"}


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    inference: Inference  # how inference is run, the same at every point
    # what is changed of the default configuration, one at a time
    points: tuple[tuple[str, int], ...]

    def tasks(self) -> "list[Task]":
        """Everything that is measured; jaxeff at the default only."""
        theirs = tuple(name for name in SESSIONS if name[0] == "numpyro")
        points = [replace(DEFAULT, **{what: value}) for what, value in self.points]
        deeper = replace(self.inference, doublings=DEEPER, rounds=1)
        return [
            Task(tuple(SESSIONS), DEFAULT, self.inference),
            *(Task(theirs, point, self.inference) for point in points),
            Task((("numpyro", "mcmc"),), DEFAULT, deeper),
        ]


class Task(NamedTuple):
    """Pairs of engine and method that infer the same, timed in turn."""

    contestants: tuple[tuple[str, str], ...]
    point: Configuration
    settings: Inference

    def __str__(self) -> str:
        return f"{self.point}, trees up to {self.settings.doublings}"


def measure(run: Run[Plan], task: Task) -> Iterator[Row]:
    """A row for each pair: its work, and processor time of a sample (MCMC) or an epoch (SVI)."""
    point, settings = task.point, task.settings
    problem = make_problem(point)
    sessions = {name: SESSIONS[name](problem, settings) for name in task.contestants}
    counts = {name: session.run() for name, session in sessions.items()}  # compiles
    times: dict[tuple[str, str], list[float]] = {name: [] for name in sessions}
    meter = roofs.Meter()
    for _ in range(settings.rounds):
        meter.measure()
        for name, session in sessions.items():
            start = time.process_time()
            session.run()
            times[name].append(1e3 * (time.process_time() - start) / len(counts[name]))
    for (engine, method), session in sessions.items():
        pair, examples = (engine, method), point.examples if method == "mcmc" else settings.batch
        # Billions of operations in a second of processor time, the sampler's own included.
        speed = (
            sum(counts[pair]) * session.work.flops / len(counts[pair]) / median(times[pair]) / 1e6
        )
        yield {
            "engine": engine, "method": method, "depth": point.depth, "width": point.width,
            "examples": point.examples, "parameters": point.parameters,
            "doublings": settings.doublings, "macs": session.work.macs,
            "analytic_macs": analytic_macs(point.widths, examples), "flops": session.work.flops,
            "evaluations": sum(counts[pair]), "total_flops": sum(counts[pair]) * session.work.flops,
            "ms": median(times[pair]), "intensity": session.work.flops / session.work.moved,
            "speed": speed, **meter.roofs()._asdict(),
        }  # fmt: skip


def growth(rows: Sequence[Row], over: str, of: str) -> tuple[float, float]:
    """The exponent of a power law of one column over another, fitted in logarithms; its R²."""
    x, y = (np.log([row[key] for row in rows]) for key in (over, of))
    return h.exponent(rows, over, of), float(np.corrcoef(x, y)[0, 1] ** 2)


def series(report: Report, over: str, **which: str) -> list[Row]:
    """Selects the default data set by number of parameters, or the default network by data."""
    fixed = {"parameters": ("examples",), "examples": ("depth", "width")}[over]
    usual = report.config["inference"]["doublings"]
    points = [
        row for row in h.where(engine="numpyro", doublings=usual, **which)(report)
        if all(row[key] == getattr(DEFAULT, key) for key in fixed)
    ]  # fmt: skip
    return sorted(points, key=lambda row: row[over])


def exponents(report: Report) -> Iterator[Row]:
    """Selects how FLOPs of MCMC grow; those of SVI are linear in the data by construction."""
    for method, over in (("mcmc", "parameters"), ("mcmc", "examples"), ("svi", "parameters")):
        slope, r2 = growth(series(report, over, method=method), over, "total_flops")
        yield {"method": method.upper(), "over": AXES[over], "exponent": slope, "r2": r2}


def latencies(report: Report) -> list[Row]:
    """Selects one row: how latencies grow with parameters, and the least of MCMC over SVI."""
    mcmc, svi = (series(report, "parameters", method=name) for name in ("mcmc", "svi"))
    steeper, flatter = (growth(rows, "parameters", "ms")[0] for rows in (mcmc, svi))
    over = min(a["ms"] / b["ms"] for a, b in zip(mcmc, svi, strict=True))
    return [{"mcmc": steeper, "svi": flatter, "over": over}]


def ratios(report: Report) -> Iterator[Row]:
    """Selects FLOPs of MCMC over those of SVI at the default point, by depth of trees."""
    at_point = [row for row in report.rows if (row["depth"], row["width"], row["examples"]) == (
        DEFAULT.depth, DEFAULT.width, DEFAULT.examples)]  # fmt: skip
    svi = {row["engine"]: row["total_flops"] for row in at_point if row["method"] == "svi"}
    for row in at_point:
        if row["method"] == "mcmc":
            ratio = row["total_flops"] / svi[row["engine"]]
            yield {**row, "steps": 2 ** row["doublings"] - 1, "ratio": ratio}


def beside(report: Report) -> Iterator[Row]:
    """Selects the FLOPs of a gradient and of an update by both engines."""
    usual = report.config["inference"]["doublings"]
    for what, method in (("a gradient", "mcmc"), ("an update", "svi")):
        ours, theirs = (
            next(iter(h.where(engine=name, method=method, doublings=usual, depth=DEFAULT.depth,
                              width=DEFAULT.width, examples=DEFAULT.examples)(report)))
            for name in ("jaxeff", "numpyro")
        )  # fmt: skip
        yield {"what": what, "ratio": ours["flops"] / theirs["flops"]}


def roofline(report: Report) -> list[Row]:
    """Selects one row: where NumPyro's runs lie under the roofs of memory and cache."""
    usual = report.config["inference"]["doublings"]
    rows = h.where(engine="numpyro", doublings=usual)(report)
    default = {
        row["method"]: row["intensity"] for row in rows
        if (row["depth"], row["width"], row["examples"])
        == (DEFAULT.depth, DEFAULT.width, DEFAULT.examples)
    }  # fmt: skip
    # Bytes a second that the speed stands for, against what memory and cache can deliver.
    between = sum(r["memory"] <= r["speed"] / r["intensity"] <= r["cache"] for r in rows)
    grown = {
        over: growth(series(report, over, method="mcmc"), over, "intensity")[0] for over in AXES
    }
    return [{
        "between": between, "points": len(rows), "half": len(rows) / 2,
        "size": grown["parameters"], "data": grown["examples"],
        "below": default["svi"] / default["mcmc"],
        "busiest": max(r["speed"] / r["arithmetic"] for r in rows),
    }]  # fmt: skip


claim = partial(h.Claim, needs="default")
CLAIMS = (
    h.Claim(
        "matrix products counted over the formula, largest deviation", "off", h.equals(0),
        of=h.summary(h.every, off=h.most(lambda row: abs(row["macs"] / row["analytic_macs"] - 1))),
    ),
    h.Claim(
        "FLOPs of {what}, jaxeff's over NumPyro's: 1 within a quarter", "ratio", h.near(1, 0.25),
        "negligible difference", beside,
    ),
    claim(
        "{method}: FLOPs over {over}, exponent (R² {r2:.3f})", "exponent", h.near(1, 0.15),
        "linear", exponents,
    ),
    claim(
        "{engine}: FLOPs of MCMC over SVI, trees of at most {steps} steps: within two times",
        "ratio", lambda row, value: HUNDRED / TWOFOLD <= value <= HUNDRED * TWOFOLD,
        f"about {HUNDRED}", ratios,
    ),
    claim(
        "latency over parameters, exponent of MCMC (SVI's: {svi:.2f})", "mcmc", h.above("svi"),
        "MCMC steeper", latencies,
    ),
    claim(
        "a sample of MCMC over an epoch of SVI, time, least", "over", h.above(1), "> 1", latencies
    ),
    claim(
        "runs whose traffic lies between the bandwidths of memory and the last cache, of {points}",
        "between", h.above("half"), "most", roofline,
    ),
    claim(
        "MCMC: operations per byte over parameters, exponent: at least a quarter", "size",
        h.at_least(RISES), "> 0", roofline,
    ),
    claim(
        "MCMC: operations per byte over training examples, exponent: at least a quarter", "data",
        h.at_least(RISES), "> 0", roofline,
    ),
    claim("operations per byte, SVI over MCMC", "below", h.below(1), "< 1", roofline),
    h.Claim(
        "fastest run over the bound of arithmetic: under one, or the bound is wrong", "busiest",
        h.below(1), of=roofline,
    ),
)  # fmt: skip


def drawn(over: str, report: Report) -> list[Row]:
    """Selects a series of both methods."""
    return [row for name in ("mcmc", "svi") for row in series(report, over, method=name)]


def _bounds(axis: Axes, report: Report) -> None:
    """Draws the roofs, medians of all runs."""
    bounds = {name: median(row[name] for row in report.rows) for name in roofs.Roofs._fields}
    low, high = axis.get_xlim()
    x = np.array([low, high])
    for name, style in (("cache", "--"), ("memory", ":")):
        axis.plot(x, bounds[name] * x, f"k{style}", label=f"bytes from {name}")
    axis.axhline(bounds["arithmetic"], color="k", label="arithmetic")


def _ticks(axis: Axes, report: Report) -> None:
    """Numbers of examples, of which there are few, in place of powers of ten."""
    if axis.get_xlabel() == AXES["examples"]:
        ticks = sorted({row["examples"] for row in report.rows})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.set_xticks([], minor=True)


PLOTS = (
    h.Plot(
        "cost",
        *(
            h.Curves(
                over, column, partial(drawn, over), "NumPyro, {method}", style="o-",
                axes={"xscale": "log", "yscale": "log", "xlabel": label, "ylabel": what},
                then=_ticks,
            )
            for column, what in (("total_flops", "FLOPs"), ("ms", "ms per sample or epoch"))
            for over, label in AXES.items()
        ),
        columns=2,
    ),
    h.Plot(
        "roofline",
        h.Curves(
            "intensity", "speed", h.where(engine="numpyro"), "NumPyro, {method}", style="o",
            axes={"xscale": "log", "yscale": "log", "xlabel": "operations per byte",
                  "ylabel": "billions of operations a second"},
            then=_bounds,
        ),
    ),
)  # fmt: skip
TABLES = (
    h.Listing(
        "cost of inference",
        (
            "engine", "method", "depth", "width", "examples", "doublings", "evaluations",
            "total_flops", "ms",
        ),
    ),
    h.Listing(
        "roofline of one core: operations per byte, billions of them a second, and the bounds",
        (
            "engine", "method", "depth", "width", "examples", "intensity", "speed",
            *roofs.Roofs._fields,
        ),
    ),
)  # fmt: skip
DIFFERENCES = (
    "FLOPs: the thesis read hardware counters (likwid), which a container doesn't have. Here they "
    "are XLA's count of one gradient (MCMC) or one update (SVI) before fusion, times the gradients "
    "that NUTS reports or the updates of an epoch; the trees' own bookkeeping is not in it.",
    "That SVI's FLOPs grow linearly with the data is no finding here, since they are those of one "
    "update times a number of updates; those of MCMC are counted by the trees that NUTS built.",
    "Engines are NumPyro and jaxeff; the thesis has two more.",
    "Bytes are those that XLA's kernels read and write, by its own count; the thesis' are what "
    "its counters saw between caches and memory, which is less. Bounds are copies, and products "
    "of matrices of 768 rows, on one core.",
    "Times are processor time of one process, without compilation; the thesis used a 16-core EPYC "
    "7302P.",
    "Trees are limited to 63 steps (depth 6) but in one row: at so few warm-up iterations most "
    "trees reach their limit, so that the cost of MCMC over SVI is the limit's.",
    "Data sizes, activation (ReLU), priors (Gaussian by fan-in), starting point and mini-batch "
    "(48) are ours; the thesis gives none.",
)
SIZES = {
    "fast": Plan(
        Inference(warmup=20, samples=10, epochs=30),
        (("depth", 1), ("width", 100), ("examples", EXAMPLES // 2), ("examples", 2 * EXAMPLES)),
    ),
    "default": Plan(
        Inference(),
        (
            ("depth", 1), ("depth", 5), ("width", 25), ("width", 200),
            ("examples", EXAMPLES // 2), ("examples", 4 * EXAMPLES),
        ),
    ),
    "full": Plan(
        Inference(rounds=5),
        (
            *(("depth", depth) for depth in (1, 2, 4, 5)),
            *(("width", width) for width in (25, 100, 200)),
            *(("examples", n) for n in (EXAMPLES // 2, 2 * EXAMPLES, 4 * EXAMPLES)),
        ),
    ),
}  # fmt: skip
STUDY = h.Study(
    "scaling", __doc__, SIZES, (h.Part(lambda run: run.settings.tasks(), measure),), CLAIMS, PLOTS,
    TABLES, DIFFERENCES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
