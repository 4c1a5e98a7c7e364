"""One picture: how the domains separate, and what each method costs."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import Report

_TITLES = {
    "deterministic": "deterministic: entropy",
    "svi30": "SVI, 30 samples: mutual information",
    "moments": "moment pass: mutual information",
}


def draw(report: Report) -> dict[str, Figure]:
    """Draws histograms of the out-of-domain score, accuracy, and latency."""
    figure, axes = plt.subplots(1, 4, figsize=(16, 4), layout="constrained")
    for axis, method in zip(axes, _TITLES, strict=False):
        _histogram(axis, report, method)
    _latency(axes[3], report)
    return {"quickstart": figure}


def _histogram(axis: Axes, report: Report, method: str) -> None:
    inside, outside = (report.arrays[f"{method}/{side}"] for side in ("inside", "outside"))
    data = report.config["data"]
    bins = np.linspace(0, max(inside.max(), outside.max()), 40).tolist()
    axis.hist(inside, bins, density=True, alpha=0.6, label=data)
    axis.hist(outside, bins, density=True, alpha=0.6, label=report.config[data]["ood"])
    axis.set_yscale("log")
    (figures,) = (row for row in report.rows if row["method"] == method)
    axis.set_title(f"{_TITLES[method]}\nAUROC {figures['auroc']:.3f}", fontsize=10)
    axis.set_xlabel(f"nats   (accuracy {figures['accuracy']:.2%}, ECE {figures['ece']:.3f})")
    axis.set_ylabel("density")


def _latency(axis: Axes, report: Report) -> None:
    timed = {r["method"]: r["latency_ms"] for r in report.rows if "latency_ms" in r}
    names = sorted(timed, key=timed.__getitem__)
    colors = ["C3" if n.endswith("_tvm") else "C0" for n in names]
    bars = axis.barh(names, [timed[n] for n in names], color=colors)
    axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axis.set_xscale("log")
    axis.margins(x=0.25)
    axis.set_xlabel(f"ms per batch of {report.config['batch']}   (blue XLA, red TVM)")
    axis.set_title("latency on this machine", fontsize=10)
