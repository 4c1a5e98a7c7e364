"""Policies layer by layer, rewards over episodes, the front of all searchers, and sensitivities."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.galen import judging
from experiments.galen.recipe import NAMES
from experiments.harness import Report, Row, grouped

COLORS = (*(f"C{i}" for i in range(10)), "black")
"""For eleven searchers."""


def draw(report: Report) -> dict[str, Figure]:
    """The figures that there are rows for."""
    rows = [r for r in report.rows if r["part"] == "search" and r.get("reward") is not None]
    figures = {"sensitivity": _sensitivity(report)}
    if rows:
        figures |= {"rewards": _rewards(rows), "front": _front(report, rows)}
        for (target,), own in grouped(rows, "target").items():
            figures[f"policies-{target:g}"] = _policies(report, own)
    return figures


def _policies(report: Report, rows: list[Row]) -> Figure:
    """A line of panels per searcher: the best policy of all seeds."""
    sites = judging.whole(report)["sites"]
    names = [name for name in NAMES if any(row["searcher"] == name for row in rows)]
    figure, axes = plt.subplots(
        len(names), 2, figsize=(9, 1.3 + 1.1 * len(names)), squeeze=False, sharex=True
    )
    places = np.arange(len(sites))
    for (left, right), name in zip(axes, names, strict=True):
        last = name == names[-1]  # one legend for all
        best = max((r for r in rows if r["searcher"] == name), key=lambda row: row["reward"])
        left.bar(places, best["channels"], color="C0",
                 label="channels kept" if last else None)  # fmt: skip
        left.set_ylim(0, 1.05)
        left.set_title(name, fontsize=8)
        bits = [np.minimum(best[key], 32) for key in ("weights", "activations")]
        right.bar(places - 0.2, bits[0], 0.4, color="C1", label="weight bits" if last else None)
        right.bar(places + 0.2, bits[1], 0.4, color="C2",
                  label="activation bits" if last else None)  # fmt: skip
        right.set_ylim(0.8, 40)
        right.set_yscale("log", base=2)
        right.set_yticks([1, 8, 32], ["1", "8", "32"])
        for axis in (left, right):
            axis.set_xticks(places, [site.replace("stage", "s") for site in sites],
                            rotation=60, fontsize=6)  # fmt: skip
    return figure


def _rewards(rows: list[Row]) -> Figure:
    """The best reward so far, mean over seeds."""
    targets = sorted({row["target"] for row in rows}, reverse=True)
    figure, axes = plt.subplots(1, len(targets), figsize=(4.8 * len(targets), 3.8), squeeze=False)
    for axis, target in zip(axes[0], targets, strict=True):
        for i, name in enumerate(NAMES):
            own = [r["rewards"] for r in rows if (r["searcher"], r["target"]) == (name, target)]
            if not own:
                continue
            curves = np.array([[np.nan if v is None else v for v in curve] for curve in own])
            best = np.fmax.accumulate(curves, axis=1).mean(0)
            style = "-" if name in judging.AGENTS else "--"
            axis.plot(np.arange(1, len(best) + 1), best, style, color=COLORS[i], label=name)
        axis.set_ylim(-1, 1)
        axis.set_title(f"c = {target:g}", fontsize=9)
        axis.set_xlabel("episode")
        axis.set_ylabel("best reward so far")
    return figure


def _front(report: Report, rows: list[Row]) -> Figure:
    """Accuracy in the search over the share of the latency; measured results have an edge."""
    figure, axis = plt.subplots(figsize=(6.4, 4.6))
    for i, name in enumerate(NAMES):
        own = [r for r in rows if r["searcher"] == name]
        if own:
            axis.plot([r["ratio"] * r["target"] for r in own], [r["accuracy"] for r in own],
                      "s" if name in judging.AGENTS else "o", ms=5, color=COLORS[i],
                      mfc=None if name in judging.AGENTS else "none", label=name)  # fmt: skip
    points = sorted((r["ratio"] * r["target"], r["accuracy"]) for r in rows)
    best = np.maximum.accumulate([accuracy for _, accuracy in points])
    axis.step([share for share, _ in points], best, where="post", color="grey", lw=0.8)
    base = judging.whole(report)
    axis.axhline(base["validation"], color="black", lw=0.6, ls=":")
    axis.set_xlabel("share of the latency of float32")
    axis.set_ylabel("accuracy in the search")
    return figure


def _sensitivity(report: Report) -> Figure:
    """Heat maps, by method."""
    row = next(row for row in report.rows if row["part"] == "sensitivity")
    sites = judging.whole(report)["sites"]
    names = ("pruning", "weights", "activations")
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    for axis, name in zip(axes, names, strict=True):
        table = np.log10(1e-4 + np.array(row[name]))
        shown = axis.imshow(table.T, origin="lower", aspect="auto", cmap="viridis", vmin=-4, vmax=1)
        axis.set_xticks(range(len(sites)), [s.replace("stage", "s") for s in sites],
                        rotation=60, fontsize=6)  # fmt: skip
        axis.set_yticks([0, len(row["strengths"]) - 1], ["none", "most"])
        axis.set_title(f"{name}: log10 of nats", fontsize=9)
    figure.colorbar(shown, ax=axes[-1])
    return figure
