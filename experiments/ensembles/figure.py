"""Predictive bands, histograms of uncertainties, and the methods side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.ensembles import judging
from experiments.ensembles.sine import SOURCE, grid
from experiments.harness import Report, Row, averaged, grouped
from jaxeff.data import sine as noisy_sine
from jaxeff.uncertainty import RegressionUncertainty, draw_regression, negative_log_density

DOMAINS = {"clean": "C0", "ambiguous": "C1", "ood": "C3"}
SHOWN = ("MAP", "DDU", "DE, few", "heads", "RLLE, patches 8", "RLLE, other")
AUROCS = {
    "auroc_aleatoric": "clean, ambiguous (aleatoric)",
    "auroc": "clean, out of domain (epistemic)",
    "auroc_ambiguous": "ambiguous, out of domain (epistemic)",
}


def draw(report: Report) -> dict[str, Figure]:
    """The figures that there are rows for."""
    figures = {}
    if rows := judging.sine(report):
        figures["activations"] = _activations(rows)
        if bands := _places(rows, report.arrays):
            figures["sine"] = _bands(report, bands)
    if rows := judging.table(report):
        figures["table"] = _table(rows)
        shown = [name for name in SHOWN if f"table/{name}/epistemic/edges" in report.arrays]
        if shown:
            figures["histograms"] = _histograms(shown, report.arrays)
    if rows := judging.of_part(report, "combined"):
        figures["combined"] = _combined(rows)
    if rows := judging.of_part(report, "partial"):
        figures["partial"] = _partial(rows)
    return figures


def _places(rows: Sequence[Row], arrays: Mapping[str, Any]) -> dict[str, str]:
    """Where the curves of the source's configurations are, by title."""
    found = {}
    for method, activation in SOURCE.items():
        for row in rows:
            place = f"sine/{row['is']}/{row['activation']}"
            if (row["method"], row["activation"]) == (
                method,
                activation,
            ) and f"{place}/x" in arrays:
                found[f"{row['is']}, {activation}: AUROC {row['auroc']:.3f}"] = place
    return found


def _bands(report: Report, places: Mapping[str, str]) -> Figure:
    at = grid(report.config["sine"]["margin"], report.config["sine"]["points"])
    figure = plt.figure(figsize=(4.6 * len(places), 4.4), layout="constrained")
    panels = np.ravel(np.asarray(figure.subfigures(1, len(places), squeeze=False)))
    for panel, (title, place) in zip(panels, places.items(), strict=True):
        axes = panel.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": (2, 1, 1)})
        parts = RegressionUncertainty(
            *(
                jnp.asarray(report.arrays[f"{place}/{part}"])
                for part in RegressionUncertainty._fields
            )
        )
        x, y = (jnp.asarray(report.arrays[f"{place}/{name}"]) for name in ("x", "y"))
        train = x[:, None], y
        draw_regression(
            axes, at, parts, train, noisy_sine.noise_std(at),
            negative_log_density(at[:, None], train[0]), noisy_sine.target(at),
        )  # fmt: skip
        for axis in panel.axes:
            axis.xaxis.label.set_fontsize(7)
            axis.yaxis.label.set_fontsize(7)
            axis.tick_params(labelsize=7)
        panel.suptitle(title, fontsize=9)
    found = [axis.get_legend_handles_labels() for axis in panel.axes]
    handles, labels = ([one for own in part for one in own] for part in zip(*found, strict=True))
    figure.legend(handles, labels, loc="outside lower center", fontsize=7, ncols=len(labels))
    return figure


def _activations(rows: Sequence[Row]) -> Figure:
    """AUROC by activation, in the order of deep ensembles."""
    order = sorted((r for r in rows if r["method"] == "DE"), key=lambda row: row["auroc"])
    names = [row["activation"] for row in order] or sorted({row["activation"] for row in rows})
    figure, axis = plt.subplots(figsize=(6, 1 + 0.22 * len(names)))
    for same in grouped(rows, "method").values():
        own = [row for row in same if row["activation"] in names]
        axis.errorbar(
            [row["auroc"] for row in own], [names.index(row["activation"]) for row in own],
            xerr=[row["auroc error"] or 0 for row in own],
            fmt="o", ms=4, lw=1, label=own[0]["is"],
        )  # fmt: skip
    axis.set_yticks(range(len(names)), names, fontsize=7)
    axis.set_xlabel("AUROC of the epistemic uncertainty, gaps against data")
    axis.grid(axis="x", alpha=0.3)
    return figure


def _table(rows: Sequence[Row]) -> Figure:
    """The columns of the source's table, a dot for each method."""
    names = [row["method"] for row in rows][::-1]
    figure, axes = plt.subplots(
        1, 2, figsize=(10, 1 + 0.24 * len(names)), sharey=True, width_ratios=(1, 2)
    )
    places = np.arange(len(names))
    by = {row["method"]: row for row in rows}

    def dots(axis: Any, column: str, label: str, offset: float, colour: str) -> None:
        axis.errorbar(
            [by[n][column] for n in names], places + offset,
            xerr=[by[n][f"{column} error"] or 0 for n in names],
            fmt="o", ms=4, lw=1, color=colour, label=label,
        )  # fmt: skip

    dots(axes[0], "accuracy", "clean digits", 0.0, "C4")
    for i, (column, label) in enumerate(AUROCS.items()):
        dots(axes[1], column, label, 0.2 - 0.2 * i, f"C{i}")
    axes[0].set_yticks(places, names, fontsize=8)
    axes[0].set_xlabel("accuracy")
    axes[1].set_xlabel("AUROC")
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
    return figure


def _histograms(names: Sequence[str], arrays: Mapping[str, Any]) -> Figure:
    """Shares of images by uncertainty: aleatoric above, epistemic below."""
    figure, axes = plt.subplots(2, len(names), figsize=(2.4 * len(names), 4.2), squeeze=False)
    for row, part in zip(axes, ("aleatoric", "epistemic"), strict=True):
        for axis, name in zip(row, names, strict=True):
            place = f"table/{name}/{part}"
            edges = arrays[f"{place}/edges"]
            for domain, colour in DOMAINS.items():
                axis.stairs(
                    arrays[f"{place}/{domain}"], edges, color=colour, fill=True, alpha=0.5,
                    label=domain,
                )  # fmt: skip
            axis.set_yscale("log")
            axis.set_ylim(1e-4, 1.5)
            axis.tick_params(labelsize=7)
            if part == "aleatoric":
                axis.set_title(name, fontsize=9)
        row[0].set_ylabel("share of images")
        for axis, name in zip(row, names, strict=True):
            unit = "-log density" if (name, part) == ("DDU", "epistemic") else "nats"
            axis.set_xlabel(f"{part} / {unit}", fontsize=8)
    return figure


def _combined(rows: Sequence[Row]) -> Figure:
    """Both parents and the mixture."""
    means = averaged(rows, ("kind", "method"), judging.COLUMNS, judging.COLUMNS)
    kinds = list(dict.fromkeys(row["kind"] for row in means))
    figure, axes = plt.subplots(1, len(kinds), figsize=(4 * len(kinds), 2.4), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        own = [row for row in means if row["kind"] == kind][::-1]
        places = np.arange(len(own))
        for i, (column, label) in enumerate(AUROCS.items()):
            axis.errorbar(
                [row[column] for row in own], places + 0.2 - 0.2 * i,
                xerr=[row[f"{column} error"] or 0 for row in own],
                fmt="o", ms=4, lw=1, color=f"C{i}", label=label,
            )  # fmt: skip
        axis.set_yticks(places, [row["method"] for row in own], fontsize=8)
        axis.set_title(f"{kind} ensemble", fontsize=9)
        axis.set_xlabel("AUROC")
        axis.margins(y=0.2)
        axis.grid(axis="x", alpha=0.3)
    return figure


def _partial(rows: Sequence[Row]) -> Figure:
    """What random layers detect, site by site."""
    means = averaged(rows, ("site", "method", "members"), judging.COLUMNS, judging.COLUMNS)
    counts = {row["site"]: row["members"] for row in means}
    sites = list(counts)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3))
    for axis, column, label in zip(
        axes, ("accuracy", "auroc"), ("accuracy", "AUROC, out of domain"), strict=True
    ):
        for (method,), same in grouped(means, "method").items():
            places = [sites.index(row["site"]) for row in same]
            axis.errorbar(
                places, [row[column] for row in same],
                yerr=[row[f"{column} error"] or 0 for row in same],
                fmt="o-", ms=4, lw=1, label=method,
            )  # fmt: skip
        axis.set_xticks(range(len(sites)), [f"{s}\n{counts[s]}" for s in sites], fontsize=8)
        axis.set_xlabel("random layer, and its members or draws")
        axis.set_ylabel(label)
    return figure
