"""One picture: how the domains separate, and what each method costs."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from experiments.quickstart.evaluation import Outcome
from experiments.quickstart.recipe import Settings

_TITLES = {
    "deterministic": "deterministic: entropy",
    "svi30": "SVI, 30 samples: mutual information",
    "moments": "moment pass: mutual information",
}


def draw(outcome: Outcome, settings: Settings, path: Path) -> Path:
    """Draws histograms of the out-of-domain score, accuracy, and latency."""
    figure, axes = plt.subplots(1, 4, figsize=(16, 3.6), layout="constrained")
    for axis, method in zip(axes, _TITLES, strict=False):
        _histogram(axis, outcome, method, settings)
    _latency(axes[3], outcome, settings)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


def _histogram(axis: Axes, outcome: Outcome, method: str, settings: Settings) -> None:
    inside, outside = (np.asarray(s) for s in outcome.scores[method])
    bins = np.linspace(0, max(inside.max(), outside.max()), 40).tolist()
    axis.hist(inside, bins, density=True, alpha=0.6, label=settings.data)
    axis.hist(outside, bins, density=True, alpha=0.6, label=settings.ood)
    axis.set_yscale("log")
    figures = outcome.methods[method]
    axis.set_title(f"{_TITLES[method]}\nAUROC {figures['auroc']:.3f}", fontsize=10)
    axis.set_xlabel(f"nats   (accuracy {figures['accuracy']:.2%}, ECE {figures['ece']:.3f})")
    axis.set_ylabel("density")
    axis.legend()


def _latency(axis: Axes, outcome: Outcome, settings: Settings) -> None:
    timed = {m: v["latency_ms"] for m, v in outcome.methods.items() if "latency_ms" in v}
    names = sorted(timed, key=timed.__getitem__)
    colors = ["C3" if n.endswith("_tvm") else "C0" for n in names]
    bars = axis.barh(names, [timed[n] for n in names], color=colors)
    axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axis.set_xscale("log")
    axis.margins(x=0.25)
    axis.set_xlabel(f"ms per batch of {settings.batch}   (blue XLA, red TVM)")
    axis.set_title("latency on this machine", fontsize=10)
