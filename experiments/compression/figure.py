"""Accuracy over bits, size against accuracy, and the bits that each allocator gives to a layer."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.compression import judging
from experiments.harness import Report, Row

COLOURS = {"weights": "C0", "activations": "C1", "both": "C2"}


def draw(report: Report) -> dict[str, Figure]:
    """The figures that there are rows for."""
    figures = {}
    for name, make, rows in (
        ("bits", _bits, judging.over_bits(report.rows)),
        ("sizes", _sizes, judging.methods(report.rows)),
        ("layers", _layers, [r for r in report.rows if r["part"] == "allocation"]),
    ):
        if rows:
            figures[name] = make(report, rows)
    return figures


def _axes(count: int, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    figure, axes = plt.subplots(1, count, figsize=(4.6 * count, height), squeeze=False)
    return figure, list(axes[0])


def _subjects(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["subject"] for row in rows))


def _bits(report: Report, rows: list[Row]) -> Figure:
    subjects = _subjects(rows)
    floats = judging.float_accuracy(report.rows)
    figure, axes = _axes(len(subjects))
    for axis, subject in zip(axes, subjects, strict=True):
        for row in (r for r in rows if r["subject"] == subject):
            points = {int(k.split()[0]): v for k, v in row.items() if k.endswith(" bits")}
            style = "o-" if row["training"] else "x:"
            label = f"{row['quantized']}, {'learned steps' if row['training'] else 'no training'}"
            axis.plot(
                [*points], [*points.values()], style, color=COLOURS[row["quantized"]], label=label
            )
        axis.axhline(floats[subject], color="grey", lw=0.8, label="float32")
        axis.set_title(subject, fontsize=10)
        axis.set_xlabel("bits")
        axis.set_ylabel("accuracy")
    return figure


def _sizes(report: Report, rows: list[Row]) -> Figure:
    subjects = _subjects(rows)
    figure, axes = _axes(len(subjects), 4.4)
    for axis, subject in zip(axes, subjects, strict=True):
        own = [r for r in rows if r["subject"] == subject and r["trained"] is not None]
        for kind, marker in (("weights alone", "s"), ("weights and activations", "o")):
            chosen = [r for r in own if (r["activation bits"] == judging.FLOAT) == (marker == "s")]
            axis.errorbar(
                [r["kB"] for r in chosen], [r["trained"] for r in chosen],
                [r["error"] or 0 for r in chosen], fmt=marker, ms=4, label=kind,
            )  # fmt: skip
        whole = [r for r in report.rows if r["part"] == "float" and r["subject"] == subject]
        axis.plot(whole[0]["bytes"] / 1000, float(np.mean([r["accuracy"] for r in whole])), "k*",
                  label="float32")  # fmt: skip
        front = _front([(r["kB"], r["trained"], r["method"]) for r in own])
        axis.step([f[0] for f in front], [f[1] for f in front], where="post", color="grey", lw=0.8,
                  label="Pareto front")  # fmt: skip
        for size, value, name in front:
            axis.annotate(
                name, (size, value), fontsize=7, xytext=(3, -9), textcoords="offset points"
            )
        axis.set_xscale("log")
        axis.set_ylim(bottom=max(0, np.quantile([r["trained"] for r in own], 0.2) - 0.1))
        axis.set_title(subject, fontsize=10)
        axis.set_xlabel("kB of parameters")
        axis.set_ylabel("accuracy")
    return figure


def _front(points: list[tuple[float, float, str]]) -> list[tuple[float, float, str]]:
    front: list[tuple[float, float, str]] = []
    for point in sorted(points, key=lambda p: (p[0], -p[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def _layers(report: Report, rows: list[Row]) -> Figure:
    del report
    chosen = [r for r in rows if r["seed"] == 0]
    keys = list(dict.fromkeys((r["subject"], r["budget"]) for r in chosen))
    figure, axes = plt.subplots(
        len(keys), 2, figsize=(9.2, 2.6 * len(keys)), squeeze=False, sharex="row", sharey=True
    )
    for line, (subject, budget) in zip(axes, keys, strict=True):
        own = [r for r in chosen if (r["subject"], r["budget"]) == (subject, budget)]
        for axis, what in zip(line, ("weight_bits", "activation_bits"), strict=True):
            for row in own:
                style = "k--" if row["allocator"] == "uniform" else "o-"
                axis.plot(row["sites"], row[what], style, ms=3, label=row["allocator"])
            axis.set_title(f"{subject}, {budget} bits: {what.replace('_', ' ')}", fontsize=9)
            axis.tick_params(axis="x", rotation=45)
        line[0].set_ylabel("bits")
    return figure
