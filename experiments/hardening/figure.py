"""One picture: quantization, noisy training and both, and the trade-off they make."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from experiments.harness import Report, Row

MARKERS = {"none": "*", "qat": "o", "noise": "s", "qat+noise": "D"}


def draw(report: Report) -> dict[str, Figure]:
    """Draws, per network: curves by bit width, of noisy training, matched noise, the trade-off."""
    rows, matched = report.rows, report.extra["tables"]["matched"]
    levels = report.config["levels"]
    nets = list(dict.fromkeys(row["network"] for row in rows))
    bits = sorted({row["bits"] for row in rows if row["method"] == "qat"}, reverse=True)
    columns = len(bits) + 3
    figure, axes = plt.subplots(
        len(nets), columns, figsize=(4.2 * columns, 3.6 * len(nets)), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for line, network in zip(axes, nets, strict=True):
        own = [row for row in rows if row["network"] == network and row["seed"] == 0]
        plain = [row for row in own if row["method"] == "none"]
        for axis, b in zip(line, bits, strict=False):
            quantized = [r for r in own if r["method"] == "qat" and r["bits"] == b]
            _curves(axis, levels, [*plain, *quantized])
            axis.set_title(f"{network}, {b} bits, trained without noise", fontsize=10)
        _curves(line[-3], levels, [*plain, *(r for r in own if r["method"] == "noise")])
        line[-3].set_title(f"{network}, noisy training", fontsize=10)
        for curve in (m for m in matched if m["network"] == network):
            mu = "" if curve["mu"] is None else f", μ = {curve['mu']:.2f}"
            kind = _quantization(curve)
            line[-2].plot(curve["sigmas"], curve["curve"], "o-", ms=3, label=f"{kind}{mu}")
        _axis(line[-2], min(levels[1:]))
        line[-2].set_title(f"{network}, same noise in training and test", fontsize=10)
        _tradeoff(line[-1], own)
        line[-1].set_title(f"{network}, {report.size} size", fontsize=10)
    return {"curves": figure}


def _curves(axis: Axes, levels: Sequence[float], rows: Sequence[Row]) -> None:
    for row in rows:
        mu = "no μ" if row["mu"] is None else f"μ = {row['mu']:.2f}"
        name = f"σ = {row['sigma']:g}" if row["method"] == "noise" else _quantization(row)
        style = "k--" if row["method"] == "none" else "-"
        axis.plot(levels, row["curve"], style, marker=".", ms=4, label=f"{name}, {mu}")
    _axis(axis, min(levels[1:]))


def _axis(axis: Axes, least: float) -> None:
    axis.set_xscale("symlog", linthresh=least)
    axis.set_xticks([0, *(10.0**n for n in range(-2, 2) if 10.0**n > 1.5 * least)])
    axis.set_xlabel("noise level σ")
    axis.set_ylabel("accuracy")


def _tradeoff(axis: Axes, rows: Sequence[Row]) -> None:
    for method, marker in MARKERS.items():
        found = [r for r in rows if r["method"] == method and r["mu"] is not None]
        if found:
            axis.plot([r["mu"] for r in found], [r["peak"] for r in found], marker, label=method)
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axis.set_xlabel("midpoint noise level μ")
    axis.set_ylabel("peak accuracy")


def _quantization(row: Row) -> str:
    if row["scaling"] == "none":
        return "fp32"
    scale = f" {row['scale']:g}" if row["scaling"] == "constant" else ""
    return f"{row['bits']} bits, {row['scaling']}{scale}"
