"""The figures, drawn from the kept trials alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.activations import moons, sine
from experiments.activations.judging import compare
from experiments.activations.recipe import Settings
from experiments.activations.source import MOONS
from experiments.activations.store import Outcome
from jaxeff.uncertainty import RegressionUncertainty
from jaxeff.uncertainty.figures import draw_plane, draw_regression

Outcomes = Mapping[str, Outcome]


def draw(tables: Mapping[str, Outcomes], settings: Settings, stem: Path) -> list[Path]:
    """Draws every table there are outcomes for.

    Args:
        tables: Outcomes by activation, by table (``sine-nuts``, ``moons-svi``, ...).
        settings: Of the study.
        stem: Where the figures go: this path, a dash, the figure's name, ``.png``.
    """
    figures: dict[str, Figure] = {}
    for name, outcomes in tables.items():
        if not outcomes:
            continue
        if name.startswith("sine"):
            figures[name] = _sine(outcomes, settings, columns=4)
            ten = {n: outcomes[n] for n in MOONS if n in outcomes}
            if ten and name == "sine-nuts":
                figures["sine-ten"] = _sine(ten, settings)
        else:
            figures[name] = _moons(outcomes, settings)
        rows = [outcome.row for outcome in outcomes.values()]
        comparison = compare(rows, "auroc")
        if comparison["correlation"] is not None:
            figures[f"{name}-ranking"] = _ranking(rows, comparison["correlation"])
    paths = []
    for name, figure in figures.items():
        path = stem.with_name(f"{stem.name}-{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        plt.close(figure)
        paths.append(path)
    return paths


def _sine(outcomes: Outcomes, settings: Settings, columns: int = 2) -> Figure:
    """The source's three rows for each activation, by falling AUROC."""
    known = sine.scene(settings)
    rows = -(-len(outcomes) // columns)
    figure = plt.figure(figsize=(4.6 * columns, 4.4 * rows), layout="constrained")
    panels = np.ravel(figure.subfigures(rows, columns, squeeze=False))
    for panel, outcome in zip(panels, _by_auroc(outcomes), strict=False):
        axes = panel.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (2, 1, 1)})
        parts = RegressionUncertainty(
            *(outcome.curves[name] for name in ("mean", "aleatoric", "epistemic"))
        )
        draw_regression(
            axes, known.x, parts, known.train, known.noise, known.sparsity, known.target
        )
        for axis in panel.axes:
            axis.xaxis.label.set_fontsize(7)
            axis.yaxis.label.set_fontsize(7)
            axis.tick_params(labelsize=7)
        panel.suptitle(_title(outcome.row), fontsize=9)
    panels[0].axes[0].legend(fontsize=6, loc="upper left")
    panels[0].axes[1].legend(fontsize=6, loc="upper left")
    return figure


def _moons(outcomes: Outcomes, settings: Settings, columns: int = 2) -> Figure:
    """The source's two panels for each activation, by falling AUROC."""
    known = moons.scene(settings)
    shape = known.grid[0].shape
    rows = -(-len(outcomes) // columns)
    figure = plt.figure(figsize=(6.6 * columns, 2.9 * rows), layout="constrained")
    panels = np.ravel(figure.subfigures(rows, columns, squeeze=False))
    for panel, outcome in zip(panels, _by_auroc(outcomes), strict=False):
        axes = panel.subplots(1, 2, sharey=True)
        probability = outcome.curves["probability"].reshape(shape)
        epistemic = outcome.curves["epistemic"].reshape(shape)
        ood = known.outside.reshape(shape)
        filled = draw_plane(axes, known.grid, probability, epistemic, ood, known.train)
        for axis, contours, label in zip(axes, filled, ("mean", "nats"), strict=True):
            axis.tick_params(labelsize=7)
            bar = panel.colorbar(contours, ax=axis, format="%.2f")
            bar.set_label(label, fontsize=7)
            bar.ax.tick_params(labelsize=6)
        panel.suptitle(_title(outcome.row), fontsize=9)
    return figure


def _ranking(rows: Sequence[Mapping[str, Any]], correlation: float) -> Figure:
    """Our AUROC against the source's; by what is missing to 1, since most are close to it."""
    figure, axis = plt.subplots(figsize=(6.5, 6), layout="constrained")
    for row in rows:
        if "source_auroc" not in row:
            continue
        hollow = not row.get("converged", True)
        place = (1 - row["source_auroc"], 1 - row["auroc"])
        axis.plot(*place, "o", color="C0", mfc="white" if hollow else "C0")
        axis.annotate(
            row["activation"], place, fontsize=6, xytext=(4, 2), textcoords="offset points"
        )
    axis.axline((0.01, 0.01), (0.1, 0.1), color="gray", lw=0.7)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.invert_xaxis()
    axis.invert_yaxis()
    axis.set_xlabel("1 - AUROC, source")
    axis.set_ylabel("1 - AUROC, ours (hollow: not converged)")
    axis.set_title(f"Spearman's rank correlation of AUROC {correlation:.2f}", fontsize=10)
    return figure


def _by_auroc(outcomes: Outcomes) -> Sequence[Outcome]:
    return sorted(outcomes.values(), key=lambda outcome: -outcome.row["auroc"])


def _title(row: Mapping[str, Any]) -> str:
    parts = [f"{row['activation']}: AUROC {row['auroc']:.3f}"]
    if "source_auroc" in row:
        parts.append(f"(source {row['source_auroc']:.3f})")
    if not row.get("converged", True):
        parts.append(f"not converged, R-hat {row['rhat_max']:.2f}")
    return " ".join(parts)
