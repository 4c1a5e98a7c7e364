"""The figures, in the source's layout, drawn from the JSON alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import Report, Row
from experiments.scaling.judging import SERIES, by_engine, data_series
from experiments.scaling.plan import DEEPER, DEFAULT

LABELS = {"numpyro": "NumPyro", "blackjax": "BlackJAX", "tfp": "TFP", "pyro": "Pyro"}
LABELS |= {"jaxeff": "jaxeff"}
COLORS = dict(zip(LABELS, ("C0", "C1", "C2", "C3", "C4"), strict=True))
STYLES: dict[str, dict[str, Any]] = {
    "mcmc": {"linestyle": "-", "marker": "o"},
    "svi": {"linestyle": "--", "marker": "s"},
}
AXES = {"parameters": "parameters", "examples": "training examples"}
ROOF = ("L2", "L3", "DRAM")


def draw(report: Report) -> dict[str, Figure]:
    """Draws all three figures."""
    rows = [row for row in report.rows if row["doublings"] != DEEPER or report.size == "full"]
    return {
        "flops": _flops(rows),
        "latency": _latency(rows),
        "roofline": _roofline(rows, report.extra["ceilings"]),
    }


def _flops(rows: Sequence[Row]) -> Figure:
    """FLOPs of a whole inference, by samples drawn, model size and data size."""
    figure, (first, *others) = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    default = [row for row in data_series(rows) if row["examples"] == DEFAULT.examples]
    for row in default:
        if row["method"] == "mcmc":
            counts = row["warmup_evaluations"] + np.cumsum([0, *row["per_iteration"]])
            first.plot(counts * row["flops"], color=COLORS[row["engine"]], alpha=0.8)
    first.set_ylim(bottom=0)
    first.set_xlabel("MCMC samples (warm-up at 0)")
    first.set_ylabel("FLOPs")
    for axis, over in zip(others, SERIES, strict=True):
        _lines(axis, rows, over, "total_flops")
    figure.suptitle("Work of an inference", fontsize=11)
    return figure


def _latency(rows: Sequence[Row]) -> Figure:
    """Milliseconds per sample (MCMC) and per epoch (SVI)."""
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.2), layout="constrained")
    for axis, over in zip(axes, SERIES, strict=True):
        _lines(axis, rows, over, "ms")
    axes[0].set_ylabel("ms per sample (MCMC) or epoch (SVI)")
    figure.suptitle("Latency, one core", fontsize=11)
    return figure


def _roofline(rows: Sequence[Row], ceilings: Mapping[str, Any]) -> Figure:
    """Arithmetic reached over operational intensity, below measured ceilings."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.6), layout="constrained", sharey=True)
    intensities = [row["intensity"] for row in rows]
    span = np.geomspace(min(intensities) / 3, 3 * max(intensities), 200)
    for axis, (over, series) in zip(axes, SERIES.items(), strict=True):
        for level, gray in zip(ROOF, (0.6, 0.4, 0.1), strict=True):
            speed = ceilings["bandwidths"][level]
            axis.plot(span, np.minimum(span * speed, ceilings["peak"]) / 1e9, color=str(gray), lw=1)
            label = f"{level} {speed / 1e9:.0f} GB/s"
            axis.annotate(label, (span[0], span[0] * speed / 1e9), fontsize=7, color=str(gray))
        for method, style in STYLES.items():
            for engine, own in by_engine([r for r in rows if r["method"] == method]).items():
                line = series(own)
                sizes = np.linspace(15, 90, len(line))
                x, y = ([row[key] for row in line] for key in ("intensity", "gflops"))
                axis.plot(x, y, color=COLORS[engine], linewidth=0.6, linestyle=style["linestyle"])
                name = f"{LABELS[engine]}, {method.upper()}"
                face = COLORS[engine] if method == "mcmc" else "none"
                axis.scatter(x, y, sizes, marker=style["marker"], edgecolors=COLORS[engine],
                             facecolors=face, label=name, alpha=0.7)  # fmt: skip
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("operational intensity, FLOP/byte")
        axis.set_title(f"{AXES[over]}: larger markers, more", fontsize=10)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("GFLOP/s")
    figure.suptitle(f"Roofline, one core, peak {ceilings['peak'] / 1e9:.0f} GFLOP/s", fontsize=11)
    return figure


def _lines(axis: Axes, rows: Sequence[Row], over: str, of: str) -> None:
    for method, style in STYLES.items():
        for engine, own in by_engine([r for r in rows if r["method"] == method]).items():
            line = SERIES[over](own)
            x, y = ([row[key] for row in line] for key in (over, of))
            label = f"{LABELS[engine]}, {method.upper()}"
            axis.plot(x, y, color=COLORS[engine], alpha=0.8, markersize=4, label=label, **style)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(AXES[over])
    axis.grid(alpha=0.3)
    if over == "examples":
        ticks = sorted({row["examples"] for row in SERIES[over](rows)})
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
