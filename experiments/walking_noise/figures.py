"""The study's figures: curves, midpoints by slot, self-binarization, mixed noise."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.harness import Report, Row
from experiments.walking_noise.findings import CHANCE, ORDERS, Curve, accuracies, midpoints
from jaxeff.robustness import Midpoint, summarize
from jaxeff.robustness.curves import draw_contour, draw_curve, draw_histograms, draw_midpoints

KINDS = {"add": "additive", "mul": "multiplicative"}


def draw(report: Report) -> dict[str, Figure]:
    """Draws every figure that the rows are enough for."""
    rows, fits = report.rows, midpoints(report.rows)
    figures = {}
    if any(c.where == "global" for c in fits):
        figures["curves"] = _curves(rows, fits)
    for kind in KINDS:
        if any(c.where == "layers" and c.kind == kind for c in fits):
            figures[f"layers-{kind}"] = _layers(rows, fits, kind)
    for row in report.extra["binarization"]:
        if row["accuracy"] is not None:
            figures[f"binarization-{row['case']}"] = _binarization(row, report.arrays)
    if mixed := [row for row in rows if row["kind"] in ORDERS]:
        figures["mixed"] = _mixed(mixed)
    return figures


def _curves(rows: Sequence[Row], fits: Mapping[Curve, Midpoint]) -> Figure:
    """Accuracy under noise in every slot at once: a row per net and data, a column per kind."""
    chosen = [c for c in fits if c.where == "global"]
    cases = list(dict.fromkeys(c.case.removesuffix("-bn") for c in chosen))
    kinds = [kind for kind in KINDS if any(c.kind == kind for c in chosen)]
    figure, axes = plt.subplots(
        len(cases), len(kinds), figsize=(5.5 * len(kinds), 2.9 * len(cases)),
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for i, case in enumerate(cases):
        for j, kind in enumerate(kinds):
            axis = axes[i, j]
            for k, (suffix, label) in enumerate((("-bn", "batch norm"), ("", "no batch norm"))):
                curve = Curve(case + suffix, kind, "global", "global")
                if curve in fits:
                    summary = summarize(*accuracies(rows, curve))
                    draw_curve(axis, summary, fits[curve], label=label, color=f"C{k}")
            if axis.has_data():
                axis.set_title(f"{case}, {KINDS[kind]} noise everywhere", fontsize=10)
                axis.set_ylim(0, 1)
            else:
                axis.set_visible(False)
    return figure


def _layers(rows: Sequence[Row], fits: Mapping[Curve, Midpoint], kind: str) -> Figure:
    """Midpoints slot by slot, and the curves they are from."""
    chosen = [c for c in fits if (c.where, c.kind) == ("layers", kind)]
    cases = list(dict.fromkeys(c.case for c in chosen))
    figure, axes = plt.subplots(
        len(cases), 2, figsize=(12, 3.1 * len(cases)), squeeze=False, layout="constrained"
    )
    for row, case in zip(axes, cases, strict=True):
        slots = [c for c in chosen if c.case == case]
        draw_midpoints(row[0], {c.site: fits[c] for c in slots})
        row[0].set_title(f"{case}: midpoint of {KINDS[kind]} noise in one slot", fontsize=10)
        for i, curve in enumerate(slots):
            levels, table = accuracies(rows, curve)
            colour = plt.get_cmap("viridis")(i / max(len(slots) - 1, 1))
            mean = np.where(np.isnan(table), CHANCE, table).mean(axis=0)
            row[1].plot(levels, mean, ".-", color=colour, label=curve.site, lw=1)
        row[1].set_xscale("log")
        row[1].set_ylim(0, 1)
        row[1].set_xlabel("noise level σ")
        row[1].set_ylabel("accuracy")
    return figure


def _binarization(row: Row, arrays: Mapping[str, np.ndarray]) -> Figure:
    """Values on both scales, and the threshold check (Klein's thesis, section 6.2.2)."""
    found = {name.removeprefix(f"{row['case']}/"): array for name, array in arrays.items()}
    level = row["level"]
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    trained = {f"trained with σ = {level:.0e}": found["before"], "least noise": found["least"]}
    draw_histograms(axes[0], trained, scale="log")
    axes[0].set_title(f"{row['case']}: values of {row['site']}, before noise", fontsize=10)
    scaled = {"with noise, over σ": found["noisy"] / level, "before noise": found["before"]}
    draw_histograms(axes[1], scaled)
    axes[1].set_title("the same, linear", fontsize=10)
    axes[2].plot(found["thresholds"] / level, found["accuracies"], ".-", label="two values only")
    axes[2].axhline(row["accuracy"], color="C1", ls="--", label="all values")
    axes[2].set_xscale("log")
    axes[2].set_ylim(0, 1)
    axes[2].set_xlabel("threshold / σ")
    axes[2].set_ylabel("accuracy under the noise")
    return figure


def _mixed(rows: Sequence[Row]) -> Figure:
    """Accuracy over both kinds of noise: a row per net, a column per order."""
    cases = list(dict.fromkeys((row["case"], row["site"]) for row in rows))
    orders = [order for order in ORDERS if any(row["kind"] == order for row in rows)]
    figure, axes = plt.subplots(
        len(cases), len(orders), figsize=(5 * len(orders), 3.8 * len(cases)), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for i, (case, site) in enumerate(cases):
        for j, order in enumerate(orders):
            chosen = [r for r in rows if (r["case"], r["site"], r["kind"]) == (case, site, order)]
            add, mul = (np.unique([r[name] for r in chosen]) for name in ("add", "mul"))
            table = np.full((len(add), len(mul)), np.nan)
            for row in chosen:
                place = np.searchsorted(add, row["add"]), np.searchsorted(mul, row["mul"])
                table[place] = CHANCE if row["diverged"] else row["accuracy"]
            if min(table.shape) < 2:
                axes[i, j].set_visible(False)  # no surface
                continue
            filled = draw_contour(axes[i, j], add, mul, table)
            axes[i, j].set_title(f"{case}, {site}: {ORDERS[order]}", fontsize=10)
            figure.colorbar(filled, ax=axes[i, j], label="accuracy")
    return figure
