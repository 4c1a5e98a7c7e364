"""The source's claims, held to what was measured, its figures, and how far both studies differ."""

from collections.abc import Iterator, Sequence
from functools import partial
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


Check = tuple[str, Any, Any, bool]
"""What is claimed, the source's value, ours, and whether it holds."""
HUNDRED, TWOFOLD = 100, 2
"""FLOPs of MCMC over those of SVI in the source, two orders of magnitude; how near is about it."""
POINT = ("depth", "width", "examples")


def judge(report: Report) -> None:
    """Adds the checks; short chains decide no cost of a whole inference."""
    rows = _usual(report)
    mcmc, svi = ([row for row in rows if row["method"] == m] for m in ("mcmc", "svi"))
    off = max(abs(row["macs"] / row["analytic_macs"] - 1) for row in rows)
    report.check("matrix products counted over the formula: no deviation", None, off, off == 0)
    # Those of SVI are a count times a number of updates: linear in the data by construction.
    found = [*_linear(mcmc)]
    for own, bound in ((mcmc, 1.05), (svi, 1.25)):
        if own:
            found += _beside(own, bound, report.extra["ceilings"]["bandwidths"])
    if _pairs(mcmc, svi):
        found += [*_ratios(report.rows, mcmc, svi), *_exponents(mcmc, svi), *_intensity(mcmc, svi)]
    for check in found:
        report.check(*check, needs="default")


def growth(rows: Sequence[Row], over: str, of: str) -> tuple[float, float]:
    """The exponent of a power law of one column over another, fitted in logarithms; its R²."""
    x, y = (np.log([row[key] for row in rows]) for key in (over, of))
    slope, intercept = np.polyfit(x, y, 1)
    residual = np.sum((y - slope * x - intercept) ** 2)
    return float(slope), float(1 - residual / np.sum((y - y.mean()) ** 2))


def series(rows: Sequence[Row], over: str) -> list[Row]:
    """Those of the default data set by number of parameters, or of the default network by data."""
    fixed = {"parameters": ("examples",), "examples": ("depth", "width")}[over]
    own = [row for row in rows if all(row[key] == getattr(DEFAULT, key) for key in fixed)]
    return sorted(own, key=lambda row: row[over])


def by_engine(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each engine."""
    ordered = sorted(rows, key=lambda row: row["engine"])
    return {name: own for (name,), own in h.grouped(ordered, "engine").items()}


def lines(rows: Sequence[Row], over: str) -> dict[str, list[Row]]:
    """The series of each engine that has more than one point of it."""
    found = {engine: series(own, over) for engine, own in by_engine(rows).items()}
    return {engine: line for engine, line in found.items() if len(line) > 1}


def _usual(report: Report) -> list[Row]:
    """Selects the rows of the usual depth of trees."""
    return [row for row in report.rows if row["doublings"] != DEEPER or report.size == "full"]


def _linear(rows: Sequence[Row]) -> Iterator[Check]:
    for over in AXES:
        fits = [growth(line, over, "total_flops") for line in lines(rows, over).values()]
        if fits:
            worst = max((slope for slope, _ in fits), key=lambda slope: abs(slope - 1))
            least = min(r2 for _, r2 in fits)
            name = f"FLOPs over {over}, exponent farthest from 1, R² over {least:.3f}"
            holds = abs(worst - 1) < 0.15 and least > 0.97
            yield f"{_method(rows)}: {name}", "linear", worst, holds


def _beside(rows: Sequence[Row], bound: float, speeds: dict[str, float]) -> Iterator[Check]:
    """Engines of one method beside each other, and beside the ceilings."""
    method = _method(rows)
    points = [[row["flops"] for row in own] for own in h.grouped(rows, *POINT).values()]
    worst = max(max(flops) / min(flops) for flops in points)
    each = {"MCMC": "a gradient", "SVI": "an update"}[method]
    name = f"FLOPs of {each}, largest over smallest engine: at most {bound}"
    yield name, "negligible", worst, worst <= bound
    slower = []
    for own in h.grouped(series(rows, "parameters"), *POINT).values():
        ms = {row["engine"]: row["ms_per_evaluation"] for row in own}
        if "pyro" in ms and len(ms) > 1:
            slower.append(ms.pop("pyro") / min(ms.values()))
    if slower:
        name = f"time of Pyro over the fastest, smallest network ({slower[0]:.1f}), largest"
        yield f"{method}: {name}", "overhead", slower[-1], slower[0] > max(2, slower[-1])
    reached = [1e9 * row["gflops"] / row["intensity"] for row in rows]
    between = float(np.mean([speeds["DRAM"] < speed < speeds["L3"] for speed in reached]))
    name = f"{method}: points between the DRAM and the L3 ceiling, share"
    yield name, "most", between, between > 0.5


def _ratios(rows: Sequence[Row], mcmc: Sequence[Row], svi: Sequence[Row]) -> Iterator[Check]:
    deep = [row for row in rows if row["doublings"] == DEEPER]
    for name, own in (
        ("FLOPs of MCMC over SVI, same engine", mcmc),
        (f"the same with trees up to depth {DEEPER} (the engines' default)", deep),
    ):
        ratios = [a["total_flops"] / b["total_flops"] for a, b in _pairs(own, svi)]
        if ratios:
            ratio, spread = float(np.median(ratios)), float(np.exp(np.std(np.log(ratios))))
            words = f"{name}, median of {len(ratios)} points (spread: a factor of {spread:.2g})"
            passed = HUNDRED / TWOFOLD <= ratio <= HUNDRED * TWOFOLD
            yield f"{words}: within {TWOFOLD} times", f"about {HUNDRED}", ratio, passed
    ratio = min(a["ms"] / b["ms"] for a, b in _pairs(mcmc, svi))
    yield "a sample of MCMC over an epoch of SVI, time, least", "> 1", ratio, ratio > 1


def _exponents(mcmc: Sequence[Row], svi: Sequence[Row]) -> Iterator[Check]:
    """Exponents of latency over parameters, engine by engine."""
    others = lines(svi, "parameters")
    for engine, line in lines(mcmc, "parameters").items():
        if engine in others:
            flatter, steeper = (growth(of, "parameters", "ms")[0] for of in (others[engine], line))
            name = f"{engine}: latency over parameters, exponent of MCMC (SVI's: {flatter:.2f})"
            yield name, "MCMC steeper", steeper, steeper > flatter


def _intensity(mcmc: Sequence[Row], svi: Sequence[Row]) -> Iterator[Check]:
    """Rises where the last point of a series lies above the first in every engine."""

    def rises(rows: Sequence[Row], over: str) -> list[float]:
        return [own[-1]["intensity"] / own[0]["intensity"] for own in lines(rows, over).values()]

    what = "operational intensity, largest over smallest"
    for rows, over in ((mcmc, "parameters"), (mcmc, "examples"), (svi, "parameters")):
        if found := rises(rows, over):
            least = min(found)
            yield f"{_method(rows)}: {what} {over}, least", "rises", least, least > 1
    if found := rises(svi, "examples"):
        most = max(found)
        yield f"SVI: {what} examples, most", "constant", most, abs(most - 1) < 0.1
    below = float(np.mean([b["intensity"] < a["intensity"] for a, b in _pairs(mcmc, svi)]))
    yield "SVI's intensity below MCMC's, share of points", "all", below, below == 1


def _method(rows: Sequence[Row]) -> str:
    return rows[0]["method"].upper() if rows else ""


def _pairs(mcmc: Sequence[Row], svi: Sequence[Row]) -> list[tuple[Row, Row]]:
    """MCMC and SVI of the same engine at the same point."""
    others = h.grouped(svi, "engine", *POINT)
    places = [tuple(row[key] for key in ("engine", *POINT)) for row in mcmc]
    pairs = zip(mcmc, places, strict=True)
    return [(row, others[place][-1]) for row, place in pairs if place in others]


LABELS = {
    "numpyro": "NumPyro", "blackjax": "BlackJAX", "tfp": "TFP", "pyro": "Pyro", "jaxeff": "jaxeff",
}  # fmt: skip
COLOURS = dict(zip(LABELS, ("C0", "C1", "C2", "C3", "C4"), strict=True))
STYLES = {"mcmc": "o-", "svi": "s--"}
AXES = {"parameters": "parameters", "examples": "training examples"}
ROOF = {"L2": "0.6", "L3": "0.4", "DRAM": "0.1"}


def _drawn(report: Report, over: str) -> list[Row]:
    """Selects a series of every engine and method, with what plots say of it."""
    rows = _usual(report)
    return [
        row | {
            "label": f"{LABELS[engine]}, {method.upper()}", "style": COLOURS[engine] + style,
            "size": 15 + 75 * i / max(1, len(line) - 1),
            "title": f"{AXES[over]}: larger markers, more",
        }
        for method, style in STYLES.items()
        for engine, own in by_engine([row for row in rows if row["method"] == method]).items()
        for line in [series(own, over)] for i, row in enumerate(line)
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
        *(_over(over, "total_flops", "FLOPs") for over in AXES),
    ),
    h.Plot(
        "latency", *(_over(over, "ms", "ms per sample (MCMC) or epoch (SVI)") for over in AXES)
    ),
    h.Plot("roofline", *map(_roof, AXES), size=(5.5, 4.6)),
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
