"""The source's figures: a column through the white box, noise, errors, order and retraining."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.analog.judging import mean, of, strategies, through_sequences
from experiments.analog.source import STRATEGIES
from experiments.harness import Report


def draw(report: Report) -> dict[str, Figure]:
    """Draws them; every title says that the chip is synthetic."""
    figures = {}
    if "column/counts" in report.arrays:
        figures["column"] = _column(report)
    if of(report.rows, kind="fidelity") or of(report.rows, kind="order"):
        figures["models"] = _models(report)
    if of(report.rows, kind="sequence"):
        figures["sequences"] = _sequences(report)
    for data in dict.fromkeys(r["data"] for r in of(report.rows, kind="training")):
        figures[f"training-{data}"] = _training(report, data)
    return figures


def _column(report: Report) -> Figure:
    """Counts against the ideal sum, the table's, and its spline; noise over active rows."""
    arrays = report.arrays
    figure, axes = plt.subplots(1, 4, figsize=(17, 4), layout="constrained")
    counts = arrays["column/counts"]
    for axis, name, title in zip(
        axes, ("ideal", "table", "spline"),
        ("ideal sum", "sum of the table", "spline of that sum"), strict=False,
    ):  # fmt: skip
        x = arrays[f"column/{name}"]
        ends = np.array([min(x.min(), counts.min()), max(x.max(), counts.max())])
        axis.plot(ends, ends, "k--", lw=1, label="identity")
        axis.plot(x, counts, ".", ms=3, alpha=0.6, label="read-outs")
        rms = np.sqrt(np.mean((x - counts) ** 2))
        axis.set_title(f"{title}: rms {rms:.2f}", fontsize=10)
        axis.set_xlabel(f"{title} [counts]")
        axis.set_ylabel("synthetic chip, order-free [counts]")
    active, deviation = arrays["noise/active"], arrays["noise/deviation"]
    low, middle, high = np.percentile(deviation, (5, 50, 95), axis=1)
    axes[3].fill_between(active, low, high, alpha=0.3, label="5 to 95 % of columns")
    axes[3].plot(active, middle, "o-", label="median column")
    axes[3].set_xlabel("active rows")
    axes[3].set_ylabel("standard deviation of repeats [counts]")
    axes[3].set_title("read-out noise (synthetic)", fontsize=10)
    handles = [*axes[0].get_legend_handles_labels(), *axes[3].get_legend_handles_labels()]
    figure.legend(
        handles[0] + handles[2], handles[1] + handles[3], loc="outside lower center", ncols=4,
        fontsize=8,
    )  # fmt: skip
    return figure


def _models(report: Report) -> Figure:
    """Errors over the active rows, of chips and of their order-free controls; order."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    rows = of(report.rows, kind="fidelity")
    for axis, ordered, title in zip(
        axes, (True, False), ("synthetic chips", "their order-free controls"), strict=False
    ):
        own = of(rows, ordered=ordered)
        if not own:
            continue
        active = sorted({r["active"] for r in own})
        for model in ("linear", "columnar", "white box"):
            errors = [mean(of(own, model=model, active=n), "error") for n in active]
            axis.plot(active, errors, "o-", label=model)
        floor = [mean(of(own, active=n), "noise") for n in active]
        axis.fill_between(active, 0, np.array(floor, float), color="0.8", label="noise")
        axis.set_xscale("log", base=2)
        axis.set_xticks(active, [str(n) for n in active])
        axis.set_ylim(0)
        axis.set_xlabel("active rows")
        axis.set_ylabel("rms error [counts]")
        axis.set_title(title, fontsize=10)
    _orders(axes[2], report)
    handles = [*axes[0].get_legend_handles_labels(), *axes[2].get_legend_handles_labels()]
    figure.legend(
        handles[0] + handles[2], handles[1] + handles[3], loc="outside lower center", ncols=7,
        fontsize=8,
    )  # fmt: skip
    return figure


def _orders(axis: Axes, report: Report) -> None:
    found = [r for r in of(report.rows, kind="order") if r.get("mse_ratio") is not None]
    names = {"time": "true order", "permuted": "permuted", "none": "no order"}
    for i, (position, name) in enumerate(names.items()):
        places = np.arange(len(found)) + 0.27 * (i - 1)
        axis.bar(places, [r[f"mse_{position}"] for r in found], 0.25, label=name)
    axis.set_xticks(range(len(found)), [r["chip"].replace(", ", ",\n") for r in found], fontsize=8)
    axis.set_ylabel("mean squared error [counts²]")
    axis.set_title("transformers of a column", fontsize=10)


def _sequences(report: Report) -> Figure:
    """Accuracy of networks through models of sequences, on the chips and after the loop."""
    rows = through_sequences(report.rows)
    figure, axis = plt.subplots(figsize=(8.5, 3.5), layout="constrained")
    y = np.arange(len(rows))[::-1]
    for shift, column, label, color in (
        (0.2, "on_chip", "trained through the model", "tab:blue"),
        (-0.2, "after_loop", "then in the loop", "tab:green"),
    ):
        for name, style in ((column, {}), (f"source_{column}", None)):
            there = [(r[name], at + shift) for r, at in zip(rows, y, strict=True) if r[name]]
            values, places = zip(*there, strict=True)
            if style is None:
                source = "source, real chip, other task" if column == "on_chip" else None
                axis.plot(values, places, "kD", ms=4, label=source)
            else:
                axis.barh(places, values, 0.36, color=color, label=f"synthetic chips, {label}")
    axis.set_yticks(y, [r["model"] for r in rows])
    axis.set_xlabel("accuracy [%]")
    axis.set_xlim(0, 100)
    axis.set_title(f"{rows[0]['data']}, networks through models of sequences", fontsize=10)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _training(report: Report, data: str) -> Figure:
    """Accuracy on the chips by strategy, beside the source's."""
    rows = strategies(report.rows, data)
    figure, axis = plt.subplots(figsize=(8.5, 5), layout="constrained")
    y = np.arange(len(rows))[::-1]
    own: Any = [r["on_chip"] for r in rows]
    low = [r["on_chip"] - r["worst"] for r in rows]
    high = [r["best"] - r["on_chip"] for r in rows]
    axis.barh(y, own, 0.55, xerr=[low, high], color="tab:blue", ecolor="0.3",
              label="synthetic chips (bars: worst and best)")  # fmt: skip
    soft = [(r["software"], v) for r, v in zip(rows, y, strict=True) if r["software"] is not None]
    axis.plot(*zip(*soft, strict=True), "|", color="tab:orange", ms=16, mew=2, label="software")
    axis.plot([STRATEGIES[r["strategy"]][1] for r in rows], y, "kD", ms=4,
              label="source, real chip, other task")  # fmt: skip
    axis.set_yticks(y, [r["strategy"] for r in rows])
    axis.set_xlabel("accuracy [%]")
    axis.set_title(f"{data}, retraining for synthetic chips", fontsize=10)
    axis.set_xlim(0, 100)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure
