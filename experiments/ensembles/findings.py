"""What the study claims, prints and draws, from means over seeds."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments import harness as h
from experiments import margins
from experiments.ensembles.sine import GAMMA, SOURCE
from experiments.harness import Report, Row
from experiments.latency.source import HEADS_FASTER
from experiments.sines import draw_sines, grid
from jaxeff.data import sine as noisy_sine
from jaxeff.uncertainty import negative_log_density

COLUMNS = (
    "accuracy", "nll", "ece", "accuracy_ambiguous", "auroc_aleatoric", "auroc", "auroc_ambiguous",
)  # fmt: skip
SINE_COLUMNS = (
    "auroc", "mse_prediction", "mse_aleatoric", "euc", "epistemic_inside", "epistemic_middle",
    "epistemic_beyond",
)  # fmt: skip
RLLE = ("RLLE, other", "RLLE, patches 8")
SOURCE_AUROC, LEAST_AUROC, NEAR = 0.995, 0.99, 0.003
GOOD = 0.9
"""An AUROC on the sine with which a method works."""
HEADS_OVER_ONE = 1.1
NETWORKS_OVER_HEADS = {"sine": HEADS_FASTER["sine"], "lenet5": HEADS_FASTER["lenet5_valid"]}
AUROCS = {
    "auroc_aleatoric": "clean, ambiguous (aleatoric)",
    "auroc": "clean, out of domain (epistemic)",
    "auroc_ambiguous": "ambiguous, out of domain (epistemic)",
}

every_sine = h.means(h.where(part="sine"), ("method", "activation"), SINE_COLUMNS, SINE_COLUMNS)
table = h.means(h.where(part="table"), ("method", "source"), COLUMNS, COLUMNS)


def sine(report: Report) -> list[Row]:
    """Selects a row per method and activation; RLLE once, of the strength that serves it best."""
    rows = every_sine(report)
    strengths = {
        method: np.mean([row["auroc"] for row in same])
        for (method,), same in h.grouped(rows, "method").items()
        if method.startswith(GAMMA)
    }
    best = max(strengths, key=strengths.__getitem__, default=None)
    return [
        {**row, "method": "RLLE" if row["method"] == best else row["method"], "is": row["method"]}
        for row in rows
        if not row["method"].startswith(GAMMA) or row["method"] == best
    ]


def best(rows: Iterable[Row]) -> list[Row]:
    """Finds each method's activation of the highest AUROC, and how many are good."""
    return [
        {**max(same, key=lambda row: row["auroc"]), "mean": h.mean(row["auroc"] for row in same),
         "works": sum(row["auroc"] > GOOD for row in same)}
        for same in h.grouped(rows, "method").values()
    ]  # fmt: skip


def favourites(report: Report) -> list[Row]:
    """Selects the best activation of each of the thesis' methods, if all were run."""
    rows = best(sine(report))
    if SOURCE.keys() > {row["method"] for row in rows}:
        return []
    return [{**row, "theirs": SOURCE[row["method"]]} for row in rows]


def compared_on_the_sine(report: Report) -> list[Row]:
    """Selects one row: the order of the thesis' three methods."""
    if not (rows := favourites(report)):
        return []
    works = {row["method"]: row["works"] for row in rows}
    return [
        {
            "lowest": min(rows, key=lambda row: row["auroc"])["method"],
            "aurocs": ", ".join(f"{row['method']} {row['auroc']:.3f}" for row in rows),
            "works": ", ".join(f"{method} {count}" for method, count in works.items()),
            "ordered": works["DE"] >= works["RLLE"] >= works["MC dropout"],
        }
    ]


def repelled(report: Report) -> list[Row]:
    """Selects the main RLLE rows, each beside MAP and the small deep ensemble."""
    rows = {row["method"]: row for row in table(report)}
    if not {"MAP", "DE, few", *RLLE} <= rows.keys():
        return []
    return [
        {
            **rows[name],
            "gain": rows[name]["auroc"] - rows["DE, few"]["auroc"],
            "lost": rows["MAP"]["accuracy"] - rows[name]["accuracy"],
        }
        for name in RLLE
    ]


FREE = (
    "heads, weights repel", "heads, bootstrap", "heads, priors", "last two layers, features repel",
)  # fmt: skip
"""Heads that are kept apart without images from elsewhere."""


def free(report: Report) -> list[Row]:
    """Selects what heads gain without images from elsewhere, and moment passes over networks."""
    rows = {row["method"]: row for row in table(report)}
    pairs = [(name, "heads") for name in FREE] + [("DE, few, moment passes", "DE, few")]
    each = {
        method: [(row["seed"], row["auroc"]) for row in same]
        for (method,), same in h.grouped(h.where(part="table")(report), "method").items()
    }
    checks = []
    for name, base in pairs:
        if name in rows and base in rows:
            gains = margins.paired(each[name], each[base])
            if (tie := margins.margin(gains)) is not None:
                checks.append({"name": name, "base": base, "gain": h.mean(gains), "tie": tie})
    return checks


def predictions(report: Report) -> list[Row]:
    """Selects the timed predictions, with the least that networks should cost over heads."""
    rows = h.where(part="prediction")(report)
    return [{**row, "least": NETWORKS_OVER_HEADS.get(row["network"], 1.0)} for row in rows]


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        "sine: the lowest AUROC at its best activation", "lowest", h.equals("MC dropout"),
        "MC dropout", compared_on_the_sine, shown="aurocs",
    ),
    claim(
        f"sine: activations above {GOOD}", "ordered", h.true, "DE, RLLE, MC dropout",
        compared_on_the_sine, shown="works",
    ),
    claim(
        "sine: best activation of {method}", "activation", h.equals("theirs"), "{theirs}",
        favourites, when=lambda row: row["method"] != "DE",  # which works with several
    ),
    claim(
        "{method}: AUROC at least {bound}", "auroc", h.at_least(LEAST_AUROC), SOURCE_AUROC, repelled
    ),
    claim("{method}: AUROC over that of DE, few", "gain", h.above(0), "> 0", repelled),
    claim("{method}: accuracy that MAP has more", "lost", h.at_most(NEAR), NEAR, repelled),
    claim(
        "{name}: AUROC over that of {base}, by two errors ({tie:.3f})", "gain", h.above("tie"),
        None, free,
    ),
    h.Claim(
        "{network}, {form}: million multiplications", "MMACs",
        # The thesis prints one digit, cut off.
        lambda row, ours: abs(ours - row["source_MMACs"]) <= 0.051,
        lambda row: row["source_MMACs"], predictions,
        when=lambda row: row.get("source_MMACs") is not None and row["members"] == 10,
    ),
    claim(
        "{network}, {form}: time over one network's", "over_one", h.at_most(HEADS_OVER_ONE),
        HEADS_OVER_ONE, predictions,
        when=lambda row: row["form"] == "heads" and row["network"] != "sine",
    ),
    claim(
        "{network}, {form}: time over that of heads", "over_heads", h.at_least("least"),
        lambda row: row["least"], predictions, when=lambda row: row["form"] == "networks",
    ),
)  # fmt: skip


def _scores(*keys: str) -> dict[str, Any]:
    return {k: k for k in (*keys, "seeds")} | {c: h.plus_minus(c) for c in COLUMNS}


TABLES = (
    h.Listing(
        "noisy sine: each method at its best activation",
        {
            "method": "method", "best activation": "activation", "AUROC": h.plus_minus("auroc"),
            "MSE": "mse_prediction", "MSE of noise": "mse_aleatoric",
            f"activations above {GOOD}": "works", "mean AUROC": "mean",
        },
        lambda report: best(every_sine(report)),
    ),
    h.Listing(
        "Dirty-MNIST: means and standard errors over seeds", _scores("method", "source"), table
    ),
    h.Listing("strengths, on held-out images", of=h.where(part="strengths")),
    h.Listing("a prediction, milliseconds", of=h.where(part="prediction")),
    h.Listing("an epoch of the same images, milliseconds", of=h.where(part="training")),
)  # fmt: skip


def bands(report: Report) -> Mapping[str, Figure]:
    """Draws the thesis' configurations on the sine: predictions, their errors and the doubt."""
    settings, panels = report.config["sine"], {}
    for row in sine(report):
        place = f"sine/{row['is']}/{row['activation']}"
        if SOURCE.get(row["method"]) == row["activation"] and f"{place}/x" in report.arrays:
            styles: dict[str, Any] = {
                name: jnp.asarray(report.arrays[f"{place}/{name}"])
                for name in ("x", "y", "mean", "aleatoric", "epistemic")
            }
            styles["train"] = styles["x"][:, None], styles["y"]
            panels[f"{row['is']}, {row['activation']}: AUROC {row['auroc']:.3f}"] = styles
    if not panels:
        return {}
    at = grid(settings["margin"], settings["points"])
    for styles in panels.values():
        styles["sparsity"] = negative_log_density(at[:, None], styles["train"][0])
    noise, target = noisy_sine.noise_std(at), noisy_sine.target(at)
    return {"sine": draw_sines(panels, None, at, noise, None, target, columns=len(panels))}


def activations(report: Report) -> Sequence[Row]:
    """Selects the rows of the sine, the best activations of deep ensembles first."""
    rows = sine(report)
    order = sorted((r for r in rows if r["method"] == "DE"), key=lambda row: -row["auroc"])
    names = [row["activation"] for row in order]
    shown = [row for row in rows if not names or row["activation"] in names]
    return sorted(shown, key=lambda row: names.index(row["activation"]) if names else 0)


PLOTS = (
    h.Plot(
        "activations",
        h.Dots(
            "activation", "auroc", activations, hue="{is}", error=True,
            axes={"xlabel": "AUROC of the epistemic uncertainty, gaps against data"},
        ),
        size=(6, 7),
    ),
    bands,
    h.Plot(
        "table",
        h.Dots(
            "method", {"accuracy": "clean digits"}, table, error=True,
            axes={"xlabel": "accuracy"},
        ),
        h.Dots("method", AUROCS, table, error=True, axes={"xlabel": "AUROC"}),
        size=(5.5, 6),
    ),
)  # fmt: skip
