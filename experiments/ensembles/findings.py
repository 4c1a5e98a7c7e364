"""What the study claims, prints and draws, from means over seeds."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments import harness as h
from experiments.ensembles.sine import GAMMA, SOURCE
from experiments.harness import Report, Row
from experiments.latency.source import HEADS_FASTER
from experiments.sines import doubt_at_midpoints, draw_sines, grid
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
ALL = "DE, many, one program"
FREE = (
    "heads, weights repel", "heads, bootstrap", "heads, priors", "last two layers, features repel"
)  # fmt: skip
"""Heads that are kept apart without images from elsewhere."""
SOURCE_AUROC, LEAST_AUROC, NEAR = 0.995, 0.99, 0.003
GOOD = 0.9
"""An AUROC on the sine with which a method works."""
HEADS_OVER_ONE, SPEEDUP, TRAINING_SHARE = 1.1, 4.0, 0.2
NETWORKS_OVER_HEADS = {"sine": HEADS_FASTER["sine"], "lenet5": HEADS_FASTER["lenet5_valid"]}
DOMAINS = {"clean": "C0", "ambiguous": "C1", "ood": "C3"}
SHOWN = ("MAP", "DDU", "DE, few", "heads", "RLLE, patches 8", "RLLE, other")
AUROCS = {
    "auroc_aleatoric": "clean, ambiguous (aleatoric)",
    "auroc": "clean, out of domain (epistemic)",
    "auroc_ambiguous": "ambiguous, out of domain (epistemic)",
}

every_sine = h.means(h.where(part="sine"), ("method", "activation"), SINE_COLUMNS, SINE_COLUMNS)
table = h.means(h.where(part="table"), ("method", "source"), COLUMNS, COLUMNS)
combined = h.means(h.where(part="combined"), ("kind", "method"), COLUMNS, COLUMNS)
partly = h.means(h.where(part="partial"), ("site", "method", "members"), COLUMNS, COLUMNS)


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
    """Selects the best activation of each of the source's methods, if all were run."""
    rows = best(sine(report))
    if SOURCE.keys() > {row["method"] for row in rows}:
        return []
    return [{**row, "theirs": SOURCE[row["method"]]} for row in rows]


def compared_on_the_sine(report: Report) -> list[Row]:
    """Selects one row: the order of the source's three methods."""
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


def free(report: Report) -> list[Row]:
    """Selects one row: the most that heads gain without images from elsewhere."""
    auroc = {row["method"]: row["auroc"] for row in table(report)}
    if not {"heads", *FREE} <= auroc.keys():
        return []
    return [{"gain": max(auroc[name] for name in FREE) - auroc["heads"]}]


def over_parents(report: Report) -> list[Row]:
    """Selects a row per kind of ensemble: what moment passes of its members gain."""
    return [
        {**by, "gain": by["PFP x ensemble"] - max(by["PFP"], by["ensemble"])}
        for by in h.pivot(combined, ["kind"], "method", "auroc")(report)
    ]


def predictions(report: Report) -> list[Row]:
    """Selects the timed predictions, with the least that networks should cost over heads."""
    rows = h.where(part="prediction")(report)
    return [{**row, "least": NETWORKS_OVER_HEADS.get(row["network"], 1.0)} for row in rows]


def trainings(report: Report) -> list[Row]:
    """Selects the main RLLE rows, with their training's share of a large deep ensemble's."""
    return [
        {"method": name, "share": over[name] / min(over[ALL], report.config["members"])}
        for over in h.pivot(h.where(part="training"), (), "method", "over_one")(report)
        for name in RLLE
    ]


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
        "best AUROC without images from elsewhere, over plain heads", "gain", h.above(0), of=free
    ),
    claim(
        "{kind}: AUROC of moment passes of members over both parents", "gain", h.at_least(0),
        of=over_parents,
    ),
    h.Claim(
        "{network}, {form}: million multiplications", "MMACs",
        # The source prints one digit, cut off.
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
    claim(
        "{method}: training over that of DE, many", "share", h.at_most(TRAINING_SHARE),
        TRAINING_SHARE, trainings,
    ),
    claim(
        "{network}: members as one program over a loop", "speedup", h.at_least(SPEEDUP), SPEEDUP,
        h.where(part="members"),
    ),
)  # fmt: skip


def middles(report: Report) -> Iterator[Row]:
    """Selects each method's best activation: how far doubt rises in the middle of the gap."""
    for row in best(sine(report)):
        place = f"sine/{row['is']}/{row['activation']}/epistemic"
        if place in report.arrays:
            settings, found = report.config["sine"], report.arrays[place]
            ratio = doubt_at_midpoints(grid(settings["margin"], settings["points"]), found)
            yield {k: row[k] for k in ("method", "activation")} | {"gap_over_regimes": ratio}


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
    h.Listing("noisy sine, seed 0: doubt at the middles of gap and regimes", of=middles),
    h.Listing(
        "Dirty-MNIST: means and standard errors over seeds", _scores("method", "source"), table
    ),
    h.Listing("strengths, on held-out images", of=h.where(part="strengths")),
    h.Listing("moment passes of ensembles", _scores("kind", "method"), combined),
    h.Listing("which layers are random", _scores("site", "method", "members"), partly),
    h.Listing("a prediction, milliseconds", of=h.where(part="prediction")),
    h.Listing("an epoch of the same images, milliseconds", of=h.where(part="training")),
    h.Listing("members trained as one program", of=h.where(part="members")),
)  # fmt: skip


def bands(report: Report) -> Mapping[str, Figure]:
    """Draws the source's configurations on the sine: predictions, their errors and the doubt."""
    settings, panels = report.config["sine"], {}
    for row in sine(report):
        place = f"sine/{row['is']}/{row['activation']}"
        if SOURCE.get(row["method"]) == row["activation"] and f"{place}/x" in report.arrays:
            own: dict[str, Any] = {
                name: jnp.asarray(report.arrays[f"{place}/{name}"])
                for name in ("x", "y", "mean", "aleatoric", "epistemic")
            }
            own["train"] = own["x"][:, None], own["y"]
            panels[f"{row['is']}, {row['activation']}: AUROC {row['auroc']:.3f}"] = own
    if not panels:
        return {}
    at = grid(settings["margin"], settings["points"])
    for own in panels.values():
        own["sparsity"] = negative_log_density(at[:, None], own["train"][0])
    noise, target = noisy_sine.noise_std(at), noisy_sine.target(at)
    return {"sine": draw_sines(panels, None, at, noise, None, target, columns=len(panels))}


def histograms(report: Report) -> Iterator[h.Panel]:
    """Draws the shares of images by uncertainty: a line of panels for each method."""
    arrays = report.arrays
    names = (name for name in SHOWN if f"table/{name}/epistemic/edges" in arrays)
    for name, part in itertools.product(names, ("aleatoric", "epistemic")):

        def draw(axis: Axes, place: str = f"table/{name}/{part}") -> None:
            for domain, colour in DOMAINS.items():
                axis.stairs(
                    arrays[f"{place}/{domain}"], arrays[f"{place}/edges"], color=colour, fill=True,
                    alpha=0.5, label=domain,
                )  # fmt: skip

        unit = "-log density" if (name, part) == ("DDU", "epistemic") else "nats"
        yield h.painted(
            name, draw, yscale="log", ylim=(1e-4, 1.5), xlabel=f"{part} / {unit}",
            ylabel="share of images",
        )  # fmt: skip


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
    h.Plot("histograms", histograms, columns=4, size=(3, 2.4)),
    h.Plot(
        "combined",
        h.Dots(
            "method", AUROCS, combined, facet="{kind} ensemble", error=True,
            axes={"xlabel": "AUROC"},
        ),
        size=(4.6, 2.6),
    ),
    h.Plot(
        "partial",
        *(
            h.Curves(
                "{site}\n{members}", column, partly, hue="{method}", error=True,
                axes={"xlabel": "random layer, and its members or draws", "ylabel": label},
            )
            for column, label in (("accuracy", "accuracy"), ("auroc", "AUROC, out of domain"))
        ),
        size=(4, 3),
    ),
)  # fmt: skip
