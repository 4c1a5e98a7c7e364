"""Accuracy by score, single weights against channels, and time against multiply-accumulates."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.harness import Report
from experiments.pruning import judging


def draw(report: Report) -> dict[str, Figure]:
    """The figures that there are rows for."""
    figures = {}
    if scores := judging.by_score(report.rows):
        figures["scores"] = _scores(report, scores)
    if times := [r for r in report.rows if r["part"] == "time" and r["plan"] != "whole"]:
        figures["times"] = _times(times)
    if scores and (methods := judging.by_method(report.rows)):
        figures["sparsity"] = _sparsity(report, scores, methods)
    return figures


def _scores(report: Report, rows: list[dict]) -> Figure:
    keys = list(dict.fromkeys((r["subject"], r["macs"]) for r in rows))
    accuracies = judging.whole(report.rows)
    figure, axes = plt.subplots(1, len(keys), figsize=(4.2 * len(keys), 3.8), squeeze=False)
    for axis, (subject, macs) in zip(axes[0], keys, strict=True):
        for offset, uniform in ((-0.2, False), (0.2, True)):
            own = {
                r["score"]: r for r in rows
                if (r["subject"], r["macs"], r["uniform"]) == (subject, macs, uniform)
            }  # fmt: skip
            places = np.arange(len(own)) + offset
            label = "within layers" if uniform else "over layers"
            colour = f"C{int(uniform)}"
            axis.barh(places, [r["after"] for r in own.values()], 0.36, color=colour, label=label)
            axis.plot([r["before"] for r in own.values()], places, "k|", ms=8,
                      label="before training on" if uniform else None)  # fmt: skip
        axis.set_yticks(range(len(own)), list(own))
        axis.axvline(accuracies[subject], color="grey", lw=0.8, label="whole network")
        axis.set_xlabel("accuracy")
        axis.set_title(f"{subject}, {macs:.0%} of MACs", fontsize=10)
    return figure


def _times(rows: list[dict]) -> Figure:
    subjects = list(dict.fromkeys(r["subject"] for r in rows))
    figure, axes = plt.subplots(1, len(subjects), figsize=(4.4 * len(subjects), 3.6), squeeze=False)
    for axis, subject in zip(axes[0], subjects, strict=True):
        own = [r for r in rows if r["subject"] == subject]
        for engine, marker in (("xla", "o"), ("tvm", "s")):
            left = [r[f"{engine}_time_left"] for r in own]
            axis.plot([r["macs_left"] for r in own], left, marker, label=engine.upper())
        axis.plot([0, 1], [0, 1], color="grey", lw=0.8, label="time = MACs")
        axis.set_xlabel("multiply-accumulates left")
        axis.set_ylabel("time left")
        axis.set_title(subject, fontsize=10)
    return figure


def _sparsity(report: Report, scores: list[dict], methods: list[dict]) -> Figure:
    subjects = list(dict.fromkeys(r["subject"] for r in methods))
    accuracies = judging.whole(report.rows)
    figure, axes = plt.subplots(1, len(subjects), figsize=(4.6 * len(subjects), 3.6), squeeze=False)
    for axis, subject in zip(axes[0], subjects, strict=True):
        own = [r for r in methods if r["subject"] == subject]
        for method in dict.fromkeys(r["method"] for r in own):
            points = sorted((r["kB"], r["after"]) for r in own if r["method"] == method)
            axis.plot(*zip(*points, strict=True), "o-", ms=4, label=method)
        size = next(
            r["bytes"] for r in report.rows if r["part"] == "whole" and r["subject"] == subject
        ) / 1000  # fmt: skip
        channels = [r for r in scores if r["subject"] == subject and r["score"] == "l1"]
        points = sorted((r["params_left"] * size, r["after"]) for r in channels)
        axis.plot(*zip(*points, strict=True), "k^", ms=6, label="channels, l1")
        axis.axhline(accuracies[subject], color="grey", lw=0.8, label="whole network")
        axis.set_xscale("log")
        axis.set_xlabel("kB of parameters, float32 and masks")
        axis.set_ylabel("accuracy after training on")
        axis.set_title(subject, fontsize=10)
    return figure
