"""What the study claims, prints and draws."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from experiments import harness as h
from experiments.harness import Report, Row
from experiments.photonic import light, network

CHANCE = 0.01
DEEP = 0.7
"""Density between two peaks over the lower one's, at most: any dip is none."""
COLLAPSED = 0.5
"""What is left of the way from chance to the best, where a figure has collapsed."""
LOST = {"accuracy": 0.003, "auroc_nine": 0.02}
"""Bounds of what the physical model may differ by."""
LEVELS = ("level_1", "level_2")
COLUMNS = (
    "accuracy", "auroc_nine", "entropy_nine", "auroc_other", "entropy_other", "mi_known", "mi_nine",
    "valley", "one_peak",
)  # fmt: skip
NAMES = {"known": "digits 0 to 8", "nine": "digit 9", "other": "other images"}
METRICS = {"accuracy": "accuracy", "auroc_nine": "AUROC, 9", "auroc_other": "AUROC, other"}


def _light(what: str) -> h.Chosen:
    return h.where(part="light", what=what)


def between_models(report: Report) -> Iterator[Row]:
    """Selects a row per figure: most that the models differ by, over seeds."""
    seeds = h.grouped(h.where(part="digits")(report), "seed").values()
    for name, bound in LOST.items():
        pairs = [{row["model"]: row[name] for row in rows} for rows in seeds]
        off = [abs(pair["gaussian"] - pair["physical"]) for pair in pairs]
        if off:
            yield {"name": name, "off": max(off), "limit": bound}


def collapses(report: Report) -> list[Row]:
    """Selects one row: the bits at which accuracy collapses, less those at which detection does."""
    by_bits = h.where(part="bits")(report)
    if len(by_bits) < 2:
        return []
    fewest = []
    for name, chance in (("accuracy", 1 / 9), ("auroc_nine", 0.5)):
        best = max(r[name] for r in by_bits)
        good = [r["bits"] for r in by_bits if r[name] - chance > COLLAPSED * (best - chance)]
        fewest.append(min(good))
    return [{"apart": fewest[0] - fewest[1]}]


def _spread(rows: Sequence[Row]) -> float:
    values = np.array([row["mean"] / row["carriers"] for row in rows])
    return float(np.ptp(values) / values.mean())


claim = partial(h.Claim, needs="default")
digits = h.summary(
    h.where(part="digits"), "model", accuracy=h.average("accuracy"), auroc=h.average("auroc_nine"),
    valley=h.most("valley"), one_peak=h.most("one_peak"),
)  # fmt: skip
sums = h.summary(
    _light("sum"), split=h.most(lambda row: abs(row["split"] - 1)), spread=_spread
)  # fmt: skip


def grown(report: Report) -> Iterator[Row]:
    """Selects how a training goes on: gaps of mutual information, and which comes first."""
    for (seed,), rows in h.grouped(h.where(part="epochs")(report), "seed").items():
        first, last = rows[0], max(rows, key=lambda row: row["epoch"])
        if last["epoch"] > first["epoch"] and last["mi_gap"] > 0:
            yield {
                "seed": seed, "epoch": last["epoch"], "gap": last["mi_gap"] - first["mi_gap"],
                "lead": first["accuracy"] / last["accuracy"] - first["mi_gap"] / last["mi_gap"],
            }  # fmt: skip


CLAIMS = (
    claim(
        "gap of mutual information, nines less known digits, grows from the first epoch to the "
        "{epoch}th", "gap", h.above(0), "grows (a figure)", grown,
    ),
    claim(
        "accuracy has more of its last value after one epoch than that gap (shares)", "lead",
        h.above(0), "quickly; more gradually", grown,
    ),
    h.Claim(
        "by construction: least p of {n} chi-square tests of simulated light against the law that "
        "simulates it (Bonferroni)", "pvalue",
        h.above("level"), "> {bound:g}",
        h.summary(
            _light("variance"), n=len, pvalue=h.least("pvalue"),
            level=lambda rows: 0.01 / len(rows),
        ),
    ),
    claim(
        "by construction: modes that are fitted to simulated light, of those it is simulated with",
        "modes", h.near("source_modes", 0.1), lambda row: row["source_modes"],
        _light("fit"),
    ),
    claim(
        "by construction: variance of a split intensity over I + I²/(kM), largest deviation",
        "split",
        h.at_most(0.02), "<= {bound}", sums,
    ),
    claim(
        "by construction: means add linearly, spread of mean over carriers", "spread",
        h.at_most(0.02), "<= {bound}", sums,
    ),
    claim(
        "digits 0 to 8, {model} model: accuracy, mean over seeds", "accuracy", h.at_least(0.99),
        ">= {bound}", digits,
    ),
    claim(
        "digit 9, {model} model: AUROC of mutual information, mean over seeds", "auroc",
        h.at_least(0.95), ">= {bound}", digits,
    ),
    claim(
        "two peaks of the logarithm of mutual information, {model} model: shallowest valley",
        "valley", h.at_most(DEEP), "<= {bound}", digits,
    ),
    claim(
        "one peak would do, {model} model: largest p of Silverman's test", "one_peak",
        h.below(CHANCE), "< {bound}", digits,
    ),
    claim(
        "{name}: most that the physical model differs from the surrogate", "off",
        h.at_most("limit"), "<= {limit}", between_models,
    ),
    claim(
        "bits at which accuracy collapses, less those at which detection does", "apart",
        h.near(0, 1), "within 1", collapses,
    ),
)  # fmt: skip

TABLES = (
    *(
        h.Listing(what, columns, _light(of))
        for what, of, columns in (
            ("variance", "variance", ("intensity", "mean", "variance", "skewness", "pvalue")),
            ("fit", "fit", ("modes", "photons", "electronic")),
            ("sums", "sum", ("carriers", "mean", "std", "without", "split")),
        )
    ),
    *(
        h.Listing(title, columns, h.where(part=part))
        for title, part, columns in (
            ("digits", "digits", ("seed", "model", *COLUMNS, *LEVELS)),
            ("without light", "dark", ("seed", *COLUMNS)),
            ("bits", "bits", ("bits", *COLUMNS)),
            (
                "by epoch",
                "epochs",
                ("seed", "epoch", "accuracy", "auroc_nine", "mi_known", "mi_nine", "mi_gap"),
            ),
        )
    ),
)


def variances(report: Report) -> list[Row]:
    """Selects the variance over the intensity, with the law of the fitted modes."""
    return [
        {**row, "law": row["intensity"] ** 2 / fit["modes"] + row["intensity"] / fit["photons"]
         + fit["electronic"] ** 2}
        for fit in _light("fit")(report)
        for row in _light("variance")(report)
    ]  # fmt: skip


def information(report: Report) -> list[Row]:
    """Selects the histograms of the first seed's models."""
    rows = h.where(part="digits")(report)
    return [row for row in rows if row["seed"] == rows[0]["seed"]]


def _middle(edges: np.ndarray) -> list[float]:
    middle: list[float] = ((edges[1:] + edges[:-1]) / 2).tolist()
    return middle


PLOTS = (
    h.Plot(
        "light",
        h.Curves(
            lambda row: _middle(light.EDGES), "density", _light("distribution"),
            "mean {intensity:.2g}", style="-",
            axes={
                "xlabel": "reading", "ylabel": "density", "xlim": (-0.3, 7.5), "yscale": "log",
                "ylim": (1e-3, 10),
            },
        ),
        h.Curves(
            "intensity",
            {"variance": "sampled", "law": "fit of the modes", "saturated": "saturating detector"},
            variances, style={"variance": "o", "law": "k-", "saturated": "s"},
            axes={"xlabel": "mean intensity", "ylabel": "variance"},
        ),
        h.Curves(
            "carriers",
            {"mean": "mean", "std": "standard deviation", "without": "without electronics"},
            _light("sum"), style={"without": "--"},
            axes={"xlabel": "carriers added", "ylabel": "reading"},
        ),
    ),
    h.Plot(
        "information",
        h.Curves(
            lambda row: _middle(network.EDGES),
            {f"histogram_{name}": label for name, label in NAMES.items()}, information,
            facet="{model} model: AUROC {auroc_nine:.3f}", style="-",
            axes={"xlabel": "log₁₀ of mutual information (nats)", "ylabel": "share of images"},
        ),
    ),
    h.Plot(
        "epochs",
        h.Curves(
            "epoch", {"accuracy": "accuracy", "auroc_nine": "AUROC, 9"},
            h.where(part="epochs"), axes={"xlabel": "epoch", "ylim": (0, 1)},
        ),
        h.Curves(
            "epoch", {"mi_nine": NAMES["nine"], "mi_known": NAMES["known"], "mi_gap": "gap"},
            h.where(part="epochs"), axes={"xlabel": "epoch", "ylabel": "mutual information / nats"},
        ),
        columns=2,
    ),
    h.Plot(
        "bits",
        h.Curves(
            "bits", METRICS, h.where(part="bits"),
            axes={"xlabel": "bits of weights and activations"},
        ),
    ),
)  # fmt: skip
