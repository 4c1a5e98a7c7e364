"""One picture: every measure slot by slot, and its ranks against walking noise's."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import rankdata

from experiments.harness import Report, Row
from experiments.walking_noise.ranking import MEASURES, by_site, correlation, restored
from experiments.walking_noise.reference import WALKING


def draw(report: Report) -> dict[str, Figure]:
    """Draws a row of panels per network."""
    rows = [restored(row) for row in report.extra["slots"]]
    cases = list(dict.fromkeys(r["case"] for r in rows))
    figure, axes = plt.subplots(
        len(cases), 2, figsize=(13, 3.6 * len(cases)), squeeze=False, layout="constrained",
        width_ratios=(2, 1),
    )  # fmt: skip
    for (left, right), case in zip(axes, cases, strict=True):
        _levels(left, rows, case)
        _ranks(right, rows, case)
        left.set_title(f"{case}: tolerated noise by slot (▲ beyond the levels)", fontsize=10)
    return {"ranking": figure}


def _levels(axis: Axes, rows: Sequence[Row], case: str) -> None:
    walking = by_site(rows, case, WALKING)
    sites = list(walking)
    place = np.arange(len(sites))
    for i, measure in enumerate((WALKING, *MEASURES)):
        found = by_site(rows, case, measure)
        level = np.array([found[s] for s in sites])
        style: dict[str, Any] = {"color": "black" if measure == WALKING else f"C{i - 1}"}
        axis.plot(
            place, np.where(np.isfinite(level) & (level > 0), level, np.nan), "o-", ms=4,
            lw=2 if measure == WALKING else 1, label=measure, **style,
        )  # fmt: skip
        beyond = place[np.isinf(level)]
        top = axis.get_xaxis_transform()
        if len(beyond):
            axis.plot(beyond, np.full(len(beyond), 0.97 - 0.02 * i), "^", transform=top, **style)
    axis.set_yscale("log")
    axis.set_xticks(place, sites, rotation=45, ha="right", fontsize=8)
    axis.set_ylabel("noise level σ")


def _ranks(axis: Axes, rows: Sequence[Row], case: str) -> None:
    walking = by_site(rows, case, WALKING)
    for i, measure in enumerate(MEASURES):
        found = by_site(rows, case, measure)
        sites = [s for s in walking if not np.isnan([walking[s], found[s]]).any()]
        rho = correlation(found, walking)[0]
        x, y = (rankdata([values[s] for s in sites]) for values in (walking, found))
        # Points of several measures at the same ranks stay apart.
        shift = 0.12 * (i - 1.5)
        axis.plot(x + shift, y + shift, "o", ms=4, color=f"C{i}", label=f"{measure}: ρ = {rho:.2f}")
    axis.plot([1, len(walking)], [1, len(walking)], color="gray", lw=0.7)
    axis.set_xlabel("rank by walking noise (1: most sensitive)")
    axis.set_ylabel("rank by the cheap measure")
