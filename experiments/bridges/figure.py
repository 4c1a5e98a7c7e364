"""Epistemic uncertainty of each method over the input space."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from experiments.bridges.methods import Comparison
from experiments.bridges.problems import SIDE

SHOWN = (
    "mcmc",
    "mcmc, short warm-up, from the prior",
    "mcmc, short warm-up, from svi",
    "svi",
    "svi from mcmc's best draw",
    "distilled: mean",
    "distilled: draws, mean_field",
    "distilled: draws, low_rank",
)


def draw(comparisons: list[Comparison], path: Path) -> Path:
    """Draw a panel for each method, a row of panels for each problem.

    Args:
        comparisons: Of both problems, having run.
        path: The PNG.
    """
    figure, rows = plt.subplots(
        len(comparisons), len(SHOWN), figsize=(2.4 * len(SHOWN), 5), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for axes, comparison in zip(rows, comparisons, strict=True):
        auroc = {row["method"]: row["auroc"] for row in comparison.rows}
        top = max(comparison.maps[name].max() for name in SHOWN[:1]) * 1.2
        for ax, name in zip(axes, SHOWN, strict=True):
            _panel(ax, comparison, comparison.maps[name], top)
            title = name.replace(", ", ",\n", 1)
            ax.set_title(f"{title}\nAUROC {auroc[name]:.2f}", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _panel(ax: plt.Axes, comparison: Comparison, epistemic: np.ndarray, top: float) -> None:
    problem = comparison.problem
    points, outside = np.asarray(problem.points), np.asarray(problem.outside)
    ax.tick_params(labelsize=6)
    if problem.name == "moons":
        first, second = (points[:, i].reshape(SIDE, SIDE) for i in (0, 1))
        ax.contourf(
            first, second, epistemic.reshape(SIDE, SIDE), np.linspace(0, top, 13), extend="max"
        )
        border = outside.reshape(SIDE, SIDE).astype(float)
        ax.contour(first, second, border, [0.5], colors="w", linestyles="--", linewidths=0.8)
        train = np.asarray(problem.train[0])
        ax.scatter(train[:, 0], train[:, 1], s=1, c="w")
        return
    ax.plot(points[:, 0], epistemic, lw=1)
    ax.fill_between(points[:, 0], 0, top, where=~outside, color="0.9")
    ax.set_ylim(0, top)
