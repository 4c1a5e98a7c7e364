"""The figures, drawn from the kept trials alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.activations.judging import compare
from experiments.activations.source import MOONS
from experiments.harness import Report, Row
from jaxeff.uncertainty import RegressionUncertainty, draw_plane, draw_regression

Arrays = Mapping[str, Any]


def draw(report: Report) -> dict[str, Figure]:
    """Draws every table there are rows for."""
    figures: dict[str, Figure] = {}
    for name in dict.fromkeys(row["table"] for row in report.rows):
        rows = sorted((r for r in report.rows if r["table"] == name), key=lambda r: -r["auroc"])
        if name.startswith("sine"):
            figures[name] = _sine(rows, report.arrays, columns=4)
            if name == "sine-nuts" and (ten := [r for r in rows if r["activation"] in MOONS]):
                figures["sine-ten"] = _sine(ten, report.arrays)
        else:
            figures[name] = _moons(rows, report.arrays)
        comparison = compare(rows, "auroc")
        if comparison["correlation"] is not None:
            figures[f"{name}-ranking"] = _ranking(rows, comparison["correlation"])
    return figures


def _sine(rows: Sequence[Row], arrays: Arrays, columns: int = 2) -> Figure:
    """The source's three rows for each activation, by falling AUROC."""
    known = {name: arrays[f"sine/{name}"] for name in ("x", "target", "noise", "sparsity")}
    train = (arrays["sine/train x"], arrays["sine/train y"])
    lines = -(-len(rows) // columns)
    figure = plt.figure(figsize=(4.6 * columns, 4.4 * lines), layout="constrained")
    panels = np.ravel(figure.subfigures(lines, columns, squeeze=False))
    for panel, row in zip(panels, rows, strict=False):
        axes = panel.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (2, 1, 1)})
        parts = RegressionUncertainty(
            *(arrays[f"{_place(row)}/{part}"] for part in ("mean", "aleatoric", "epistemic"))
        )
        draw_regression(
            axes, known["x"], parts, train, known["noise"], known["sparsity"], known["target"]
        )
        for axis in panel.axes:
            axis.xaxis.label.set_fontsize(7)
            axis.yaxis.label.set_fontsize(7)
            axis.tick_params(labelsize=7)
        panel.suptitle(_title(row), fontsize=9)
    return figure


def _moons(rows: Sequence[Row], arrays: Arrays, columns: int = 2) -> Figure:
    """The source's two panels for each activation, by falling AUROC."""
    grid = (arrays["moons/first"], arrays["moons/second"])
    train = (arrays["moons/train x"], arrays["moons/train y"])
    lines = -(-len(rows) // columns)
    figure = plt.figure(figsize=(6.6 * columns, 2.9 * lines), layout="constrained")
    panels = np.ravel(figure.subfigures(lines, columns, squeeze=False))
    for panel, row in zip(panels, rows, strict=False):
        axes = panel.subplots(1, 2, sharey=True)
        names = (f"{_place(row)}/probability", f"{_place(row)}/epistemic", "moons/outside")
        probability, epistemic, ood = (arrays[name].reshape(grid[0].shape) for name in names)
        filled = draw_plane(axes, grid, probability, epistemic, ood, train)
        for axis, contours, label in zip(axes, filled, ("mean", "nats"), strict=True):
            axis.tick_params(labelsize=7)
            bar = panel.colorbar(contours, ax=axis, format="%.2f")
            bar.set_label(label, fontsize=7)
            bar.ax.tick_params(labelsize=6)
        panel.suptitle(_title(row), fontsize=9)
    return figure


def _ranking(rows: Sequence[Row], correlation: float) -> Figure:
    """Our AUROC against the source's; by what is missing to 1, since most are close to it."""
    figure, axis = plt.subplots(figsize=(6.5, 6), layout="constrained")
    for row in rows:
        if "source_auroc" not in row:
            continue
        hollow = not row.get("converged", True)
        place = (1 - row["source_auroc"], 1 - row["auroc"])
        axis.plot(*place, "o", color="C0", mfc="white" if hollow else "C0")
        axis.annotate(
            row["activation"], place, fontsize=6, xytext=(4, 2), textcoords="offset points"
        )
    axis.axline((0.01, 0.01), (0.1, 0.1), color="gray", lw=0.7)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.invert_xaxis()
    axis.invert_yaxis()
    axis.set_xlabel("1 - AUROC, source")
    axis.set_ylabel("1 - AUROC, ours (hollow: not converged)")
    axis.set_title(f"Spearman's rank correlation of AUROC {correlation:.2f}", fontsize=10)
    return figure


def _place(row: Row) -> str:
    return f"{row['table']}/{row['activation']}"


def _title(row: Row) -> str:
    parts = [f"{row['activation']}: AUROC {row['auroc']:.3f}"]
    if "source_auroc" in row:
        parts.append(f"(source {row['source_auroc']:.3f})")
    if not row.get("converged", True):
        parts.append(f"not converged, R-hat {row['rhat_max']:.2f}")
    return " ".join(parts)
