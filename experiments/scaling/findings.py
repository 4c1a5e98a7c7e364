"""The source's claims, held to what was measured, its figures, and how far both studies differ."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments import harness as h
from experiments.harness import Report, Row
from experiments.scaling.plan import DEEPER, DEFAULT

DIFFERENCES = (
    "FLOPs: the source read hardware counters (likwid), which a container doesn't have. Here they "
    "are counted from the program: XLA's cost analysis of one gradient (MCMC) or one update (SVI) "
    "before fusion, and for Pyro the operations that PyTorch dispatches, times the gradients that "
    "NUTS reports or the updates of an epoch. The trees' own bookkeeping, a few operations per "
    "parameter and step, is not in it. Matrix products alone are those of the formula in every "
    "engine; what PyTorch does in one kernel (a normal draw, parts of Adam) is one operation per "
    "element there and several in XLA's program, hence Pyro's lower count of an SVI update.",
    "Bytes, and with them operational intensity: what the compiled (in Pyro: the dispatched) "
    "operations read and write, wherever it lies. Networks of this size stay in the caches, so the "
    "traffic with memory, which the source measured, is less and its intensity higher.",
    "That SVI's FLOPs grow linearly with the data is no finding here, since they are those of one "
    "update times a number of updates; those of MCMC are counted by the trees that NUTS built.",
    "Times are processor time of one core (an EPYC virtual machine, shared), without compilation; "
    "the source used a 16-core EPYC 7302P. Memory is XLA's analysis of a gradient or update (held) "
    "and what a process grows by after its imports (peak_mb), which is mostly the compiler's.",
    "NUTS trees are limited to 63 steps (depth 6), for the study to end within an hour: at 100 "
    "warm-up iterations nearly every tree reaches its limit, at the engines' default of 1023 steps "
    "too. The number of steps, and so the cost of MCMC over SVI, is then the limit's. One row has "
    "the default.",
    "Data sizes, activation (ReLU), priors (Gaussian by fan-in), starting point and mini-batch "
    "(48) are ours; the source gives none.",
    "TensorFlow Probability runs on JAX, with dual averaging and no mass matrix, as its plain "
    "sampler has it; the others adapt a diagonal one. BlackJAX takes part in MCMC only: its SVI "
    "takes no mini-batches. Pyro's SVI samples the KL term, because its JIT recompiles at every "
    "step with the one in closed form.",
)


Claim = Callable[..., None]
HUNDRED, TWOFOLD = 100, 2
"""FLOPs of MCMC over those of SVI in the source, two orders of magnitude; how near is about it."""


def judge(report: Report) -> None:
    """Adds the checks; short chains decide no cost of a whole inference."""
    rows, ceilings = report.rows, report.extra["ceilings"]
    claim = partial(report.check, needs="default")
    usual = [row for row in rows if row["doublings"] != DEEPER or report.size == "full"]
    mcmc, svi = ([row for row in usual if row["method"] == m] for m in ("mcmc", "svi"))
    _products(usual, report)
    # Those of SVI are a count times a number of updates: linear in the data by construction.
    _linear(mcmc, claim)
    for own, bound in ((mcmc, 1.05), (svi, 1.25)):
        if own:
            _agreement(own, bound, claim)
            _overhead(own, claim)
            _roofline(own, ceilings, claim)
    if _pairs(mcmc, svi):
        _ratios(rows, mcmc, svi, claim)
        _latency(mcmc, svi, claim)
        _intensity(mcmc, svi, claim)


def growth(rows: Sequence[Row], over: str, of: str) -> tuple[float, float]:
    """The exponent of a power law fitted in logarithms, and its R².

    Args:
        rows: Some measurements.
        over: What grows.
        of: What grows with it.
    """
    x, y = (np.log([row[key] for row in rows]) for key in (over, of))
    slope, intercept = np.polyfit(x, y, 1)
    residual = np.sum((y - slope * x - intercept) ** 2)
    return float(slope), float(1 - residual / np.sum((y - y.mean()) ** 2))


def model_series(rows: Sequence[Row]) -> list[Row]:
    """Those of the default data set, by number of parameters."""
    own = [row for row in rows if row["examples"] == DEFAULT.examples]
    return sorted(own, key=lambda row: row["parameters"])


def data_series(rows: Sequence[Row]) -> list[Row]:
    """Those of the default network, by size of the data set."""
    shape = (DEFAULT.depth, DEFAULT.width)
    own = [row for row in rows if (row["depth"], row["width"]) == shape]
    return sorted(own, key=lambda row: row["examples"])


SERIES = {"parameters": model_series, "examples": data_series}


def by_engine(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each engine."""
    ordered = sorted(rows, key=lambda row: row["engine"])
    return {name: list(own) for name, own in groupby(ordered, lambda row: row["engine"])}


def lines(rows: Sequence[Row], over: str) -> dict[str, list[Row]]:
    """The series of each engine that has more than one point of it."""
    found = {engine: SERIES[over](own) for engine, own in by_engine(rows).items()}
    return {engine: line for engine, line in found.items() if len(line) > 1}


def _products(rows: Sequence[Row], report: Report) -> None:
    off = max(abs(row["macs"] / row["analytic_macs"] - 1) for row in rows)
    report.check("matrix products counted over the formula: no deviation", None, off, off == 0)


def _linear(rows: Sequence[Row], claim: Claim) -> None:
    for over in SERIES if rows else ():
        fits = [growth(line, over, "total_flops") for line in lines(rows, over).values()]
        if not fits:
            continue
        worst = max((slope for slope, _ in fits), key=lambda slope: abs(slope - 1))
        least = min(r2 for _, r2 in fits)
        name = f"{_method(rows)}: FLOPs over {over}, exponent farthest from 1, R² over {least:.3f}"
        claim(name, "linear", worst, abs(worst - 1) < 0.15 and least > 0.97)


def _agreement(rows: Sequence[Row], bound: float, claim: Claim) -> None:
    points: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        points.setdefault(_place(row)[1:], []).append(row["flops"])
    worst = max(max(flops) / min(flops) for flops in points.values())
    each = {"MCMC": "a gradient", "SVI": "an update"}[_method(rows)]
    name = f"FLOPs of {each}, largest over smallest engine: at most {bound}"
    claim(name, "negligible", worst, worst <= bound)


def _ratios(rows: Sequence[Row], mcmc: Sequence[Row], svi: Sequence[Row], claim: Claim) -> None:
    for name, own in (
        ("FLOPs of MCMC over SVI, same engine", mcmc),
        (
            f"the same with trees up to depth {DEEPER} (the engines' default)",
            [row for row in rows if row["doublings"] == DEEPER],
        ),
    ):
        ratios = [a["total_flops"] / b["total_flops"] for a, b in _pairs(own, svi)]
        if ratios:
            ratio, spread = float(np.median(ratios)), float(np.exp(np.std(np.log(ratios))))
            words = f"{name}, median of {len(ratios)} points (spread: a factor of {spread:.2g})"
            passed = HUNDRED / TWOFOLD <= ratio <= HUNDRED * TWOFOLD
            claim(f"{words}: within {TWOFOLD} times", f"about {HUNDRED}", ratio, passed)
    ratio = min(a["ms"] / b["ms"] for a, b in _pairs(mcmc, svi))
    claim("a sample of MCMC over an epoch of SVI, time, least", "> 1", ratio, ratio > 1)


def _latency(mcmc: Sequence[Row], svi: Sequence[Row], claim: Claim) -> None:
    """Exponents of latency over parameters, engine by engine."""
    others = lines(svi, "parameters")
    for engine, line in lines(mcmc, "parameters").items():
        if engine in others:
            flatter, steeper = (growth(of, "parameters", "ms")[0] for of in (others[engine], line))
            name = f"{engine}: latency over parameters, exponent of MCMC (SVI's: {flatter:.2f})"
            claim(name, "MCMC steeper", steeper, steeper > flatter)


def _overhead(rows: Sequence[Row], claim: Claim) -> None:
    """Pyro beside the fastest other engine at the same point."""
    points: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in model_series(rows):
        points.setdefault(_place(row)[1:], {})[row["engine"]] = row["ms_per_evaluation"]
    slower = [
        times["pyro"] / min(ms for engine, ms in times.items() if engine != "pyro")
        for times in points.values()
        if "pyro" in times and len(times) > 1
    ]
    if slower:
        method = _method(rows)
        name = (
            f"{method}: time of Pyro over the fastest, smallest network ({slower[0]:.1f}), largest"
        )
        claim(name, "overhead", slower[-1], slower[0] > max(2, slower[-1]))


def _intensity(mcmc: Sequence[Row], svi: Sequence[Row], claim: Claim) -> None:
    """Rises where the last point of a series lies above the first in every engine."""
    for rows, over in ((mcmc, "parameters"), (mcmc, "examples"), (svi, "parameters")):
        if rises := [_rise(line) for line in lines(rows, over).values()]:
            name = f"{_method(rows)}: operational intensity, largest over smallest {over}, least"
            claim(name, "rises", min(rises), min(rises) > 1)
    if rises := [_rise(line) for line in lines(svi, "examples").values()]:
        name = "SVI: operational intensity, largest over smallest examples, most"
        claim(name, "constant", max(rises), abs(max(rises) - 1) < 0.1)
    below = float(np.mean([b["intensity"] < a["intensity"] for a, b in _pairs(mcmc, svi)]))
    claim("SVI's intensity below MCMC's, share of points", "all", below, below == 1)


def _roofline(rows: Sequence[Row], ceilings: dict[str, Any], claim: Claim) -> None:
    low, high = (ceilings["bandwidths"][level] for level in ("DRAM", "L3"))
    speeds = [1e9 * row["gflops"] / row["intensity"] for row in rows]
    between = float(np.mean([low < speed < high for speed in speeds]))
    name = f"{_method(rows)}: points between the DRAM and the L3 ceiling, share"
    claim(name, "most", between, between > 0.5)


def _method(rows: Sequence[Row]) -> str:
    return rows[0]["method"].upper()


def _rise(rows: Sequence[Row]) -> float:
    return rows[-1]["intensity"] / rows[0]["intensity"]


def _place(row: Row) -> tuple[Any, ...]:
    return row["engine"], row["depth"], row["width"], row["examples"]


def _pairs(mcmc: Sequence[Row], svi: Sequence[Row]) -> list[tuple[Row, Row]]:
    """MCMC and SVI of the same engine at the same point."""
    others = {_place(row): row for row in svi}
    return [(row, others[_place(row)]) for row in mcmc if _place(row) in others]


LABELS = {
    "numpyro": "NumPyro", "blackjax": "BlackJAX", "tfp": "TFP", "pyro": "Pyro", "jaxeff": "jaxeff",
}  # fmt: skip
COLOURS = dict(zip(LABELS, ("C0", "C1", "C2", "C3", "C4"), strict=True))
STYLES = {"mcmc": "o-", "svi": "s--"}
AXES = {"parameters": "parameters", "examples": "training examples"}
ROOF = {"L2": "0.6", "L3": "0.4", "DRAM": "0.1"}


def _drawn(report: Report, over: str) -> list[Row]:
    """Selects a series of every engine and method, with what plots say of it."""
    rows = [row for row in report.rows if row["doublings"] != DEEPER or report.size == "full"]
    return [
        row | {
            "label": f"{LABELS[engine]}, {method.upper()}", "style": COLOURS[engine] + style,
            "size": 15 + 75 * i / max(1, len(line) - 1),
            "title": f"{AXES[over]}: larger markers, more",
        }
        for method, style in STYLES.items()
        for engine, own in by_engine([row for row in rows if row["method"] == method]).items()
        for line in [SERIES[over](own)] for i, row in enumerate(line)
    ]  # fmt: skip


def _work(report: Report) -> list[Row]:
    """Selects FLOPs over the samples of MCMC at the default point."""
    found = []
    for row in _drawn(report, "examples"):
        if row["method"] == "mcmc" and row["examples"] == DEFAULT.examples:
            counts = row["warmup_evaluations"] + np.cumsum([0, *row["per_iteration"]])
            flops = (counts * row["flops"]).tolist()
            found.append(row | {"work": flops, "samples": [*range(len(flops))]})
    return found


def _over(over: str, column: str, label: str) -> h.Curves:
    def ticks(axis: Axes, report: Report) -> None:
        if over == "examples":
            found = sorted({row["examples"] for row in _drawn(report, over)})
            axis.set_xticks(found, [str(tick) for tick in found])

    return h.Curves(
        over, column, partial(_drawn, over=over), "{label}", style="{style}", then=ticks,
        axes={"xscale": "log", "yscale": "log", "xlabel": AXES[over], "ylabel": label},
    )  # fmt: skip


def _roof(over: str) -> h.Curves:
    """Makes a panel of arithmetic over operational intensity, below measured ceilings."""

    def ceilings(axis: Axes, report: Report) -> None:
        rows, found = _drawn(report, over), report.extra["ceilings"]
        intensities = [row["intensity"] for row in rows]
        span = np.geomspace(min(intensities) / 3, 3 * max(intensities), 200)
        for level, gray in ROOF.items():
            speed = found["bandwidths"][level]
            axis.plot(span, np.minimum(span * speed, found["peak"]) / 1e9, color=gray, lw=1)
            label = f"{level} {speed / 1e9:.0f} GB/s"
            axis.annotate(label, (span[0], span[0] * speed / 1e9), fontsize=7, color=gray)
        for row in rows:
            colour, marker = COLOURS[row["engine"]], STYLES[row["method"]][0]
            face = colour if row["method"] == "mcmc" else "none"
            axis.scatter(row["intensity"], row["gflops"], row["size"], marker=marker,
                         edgecolors=colour, facecolors=face, alpha=0.7)  # fmt: skip

    return h.Curves(
        "intensity", "gflops", partial(_drawn, over=over), "{label}", "{title}", style="{style}",
        axes={
            "xscale": "log", "yscale": "log", "xlabel": "operational intensity, FLOP/byte",
            "ylabel": "GFLOP/s, one core",
        },
        then=ceilings,
    )  # fmt: skip


PLOTS = (
    h.Plot(
        "flops",
        h.Curves(
            "samples", "work", _work, "{label}",
            style=lambda row: COLOURS[row["engine"]] + "-",
            axes={"xlabel": "MCMC samples (warm-up at 0)", "ylabel": "FLOPs"},
        ),
        *(_over(over, "total_flops", "FLOPs") for over in SERIES),
    ),
    h.Plot(
        "latency", *(_over(over, "ms", "ms per sample (MCMC) or epoch (SVI)") for over in SERIES)
    ),
    h.Plot("roofline", *map(_roof, SERIES), size=(5.5, 4.6)),
)  # fmt: skip
TABLES = (
    h.Listing(
        "cost of inference",
        (
            "engine", "method", "depth", "width", "examples", "ms", "total_flops", "intensity",
            "gflops", "peak_mb", "step_size",
        ),
    ),
)  # fmt: skip
