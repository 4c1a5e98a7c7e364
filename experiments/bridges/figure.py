"""Epistemic uncertainty of each method over the input space."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.bridges.problems import SIDE
from experiments.harness import Report

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


def draw(report: Report) -> dict[str, Figure]:
    """Draws a panel for each method, a row of panels for each problem."""
    problems = list(dict.fromkeys(row["problem"] for row in report.rows))
    figure, rows = plt.subplots(
        len(problems), len(SHOWN), figsize=(2.4 * len(SHOWN), 5), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    for axes, problem in zip(rows, problems, strict=True):
        own = [row for row in report.rows if row["problem"] == problem]
        auroc = {row["method"]: row["auroc"] for row in own}
        found = {name.split("/")[1]: array for name, array in report.arrays.items()
                 if name.split("/")[0] == problem}  # fmt: skip
        top = found[SHOWN[0]].max() * 1.2
        for ax, name in zip(axes, SHOWN, strict=True):
            _panel(ax, problem, found, found[name], top)
            title = name.replace(", ", ",\n", 1)
            ax.set_title(f"{title}\nAUROC {auroc[name]:.2f}", fontsize=8)
    return {"epistemic": figure}


def _panel(
    ax: plt.Axes, problem: str, of: dict[str, np.ndarray], epistemic: np.ndarray, top: float
) -> None:
    points, outside = of["points"], of["outside"]
    ax.tick_params(labelsize=6)
    if problem == "moons":
        first, second = (points[:, i].reshape(SIDE, SIDE) for i in (0, 1))
        ax.contourf(
            first, second, epistemic.reshape(SIDE, SIDE), np.linspace(0, top, 13), extend="max"
        )
        border = outside.reshape(SIDE, SIDE).astype(float)
        ax.contour(first, second, border, [0.5], colors="w", linestyles="--", linewidths=0.8)
        ax.scatter(of["train"][:, 0], of["train"][:, 1], s=1, c="w")
        return
    ax.plot(points[:, 0], epistemic, lw=1)
    ax.fill_between(points[:, 0], 0, top, where=~outside, color="0.9")
    ax.set_ylim(0, top)
