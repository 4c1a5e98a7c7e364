"""Two pictures: cost over hand-written, and the moment pass over sampling."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import Row

_LABELS = {
    "deterministic": "one deterministic pass",
    "draw_map": "drawn per call, one by one",
    "draw_vmap": "drawn per call, vmapped",
    "drawn_map": "drawn before, one by one",
    "drawn_vmap": "drawn before, vmapped",
    "drawn_unrolled": "drawn before, unrolled",
}


def draw(rows: Sequence[Row], targets: tuple[float, float]) -> dict[str, Figure]:
    """Draws the rows of `cost` and `latency`; the targets are speed-ups over both samplings."""
    costs = figure, axis = plt.subplots(
        figsize=(7, 2 + 0.45 * sum("transform" in row for row in rows)), layout="constrained"
    )
    _costs(axis, [row for row in rows if "transform" in row])
    nets = list(dict.fromkeys(row["net"] for row in rows if "times_moments" in row))
    figure, axes = plt.subplots(
        1, len(nets), figsize=(5.6 * len(nets), 4.6), layout="constrained", squeeze=False
    )
    for axis, net in zip(axes[0], nets, strict=True):
        own = [row for row in rows if row["net"] == net and "times_moments" in row]
        _latency(axis, own, targets)
        axis.set_title(f"{net}: 30 samples over one moment pass", fontsize=10)
    return {"costs": costs[0], "latency": figure}


def _costs(axis: Axes, rows: Sequence[Row]) -> None:
    names = [f"{row['net']}\n{row['transform']}" for row in rows]
    places = np.arange(len(rows))
    for i, what in enumerate(("flops", "bytes")):
        excess = [100 * (row[f"{what}_ratio"] - 1) for row in rows]
        where = places - 0.2 + 0.4 * i
        bars = axis.barh(where, excess, 0.4, label="FLOPs" if what == "flops" else what)
        axis.bar_label(bars, fmt="%.1f", fontsize=6, padding=2)
    axis.axvline(2, color="gray", linestyle=":")
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set_yticks(places, names, fontsize=7)
    axis.invert_yaxis()
    low, high = axis.get_xlim()
    axis.set_xlim(min(low, -3), max(high, 3))
    axis.set_xlabel("% more than written by hand (XLA's count; limit dotted)")
    axis.set_title("cost of the transforms", fontsize=10)


def _latency(axis: Axes, rows: Sequence[Row], targets: tuple[float, float]) -> None:
    batches = sorted({row["batch"] for row in rows})
    width = 0.8 / len(_LABELS)
    for i, (method, label) in enumerate(_LABELS.items()):
        times = {row["batch"]: row["times_moments"] for row in rows if row["method"] == method}
        places = np.arange(len(batches)) + (i - len(_LABELS) / 2 + 0.5) * width
        bars = axis.bar(places, [times[b] for b in batches], width, label=label, color=f"C{i}")
        axis.bar_label(bars, fmt="%.3g", fontsize=6)
    axis.axhline(1, color="black", linewidth=0.8)
    for target, color in zip(targets, ("C1", "C3"), strict=True):
        axis.axhline(target, color=color, linestyle=":")
    axis.set_yscale("log")
    axis.margins(y=0.1)
    axis.set_xticks(range(len(batches)), [f"batch {b}" for b in batches])
    axis.set_ylabel("times the moment pass (targets dotted)")
