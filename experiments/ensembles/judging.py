"""Means over seeds, and what the study claims."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from experiments.ensembles.sine import GAMMA, SOURCE
from experiments.harness import Report, Row, Table, averaged, grouped

COLUMNS = (
    "accuracy", "nll", "ece", "accuracy_ambiguous", "auroc_aleatoric", "auroc", "auroc_ambiguous",
)  # fmt: skip
SINE_COLUMNS = (
    "auroc", "mse_prediction", "mse_aleatoric", "euc", "epistemic_inside", "epistemic_middle",
    "epistemic_beyond",
)  # fmt: skip
RLLE = ("RLLE, other", "RLLE, patches 8")
FREE = (
    "heads, weights repel", "heads, bootstrap", "heads, priors", "last two layers, features repel"
)  # fmt: skip
"""Heads that are kept apart without images from elsewhere."""
SOURCE_AUROC, LEAST_AUROC, NEAR = 0.995, 0.99, 0.003
GOOD = 0.9
"""An AUROC on the sine with which a method works."""
HEADS_OVER_ONE, SPEEDUP = 1.1, 4.0
NETWORKS_OVER_HEADS = {"sine": 3.4, "lenet5": 8.6}
"""How many times faster a network with ten heads is than ten: Klein's thesis, table 9.2."""


def of_part(report: Report, part: str) -> list[Row]:
    """The rows of a part."""
    return [row for row in report.rows if row["part"] == part]


def sine(report: Report) -> list[Row]:
    """A row per method and activation; RLLE once, with the strength that serves it best."""
    rows = averaged(of_part(report, "sine"), ("method", "activation"), SINE_COLUMNS, SINE_COLUMNS)
    strengths = {
        method: np.mean([row["auroc"] for row in same])
        for (method,), same in grouped(rows, "method").items()
        if method.startswith(GAMMA)
    }
    best = max(strengths, key=strengths.__getitem__, default=None)
    return [
        {**row, "method": "RLLE" if row["method"] == best else row["method"], "is": row["method"]}
        for row in rows
        if not row["method"].startswith(GAMMA) or row["method"] == best
    ]


def best(rows: Iterable[Row]) -> dict[str, Row]:
    """By method, the activation of the highest AUROC."""
    return {
        method: max(same, key=lambda row: row["auroc"])
        for (method,), same in grouped(rows, "method").items()
    }


def table(report: Report) -> list[Row]:
    """A row per method on Dirty-MNIST."""
    return averaged(of_part(report, "table"), ("method", "source"), COLUMNS, COLUMNS)


def tables(report: Report) -> list[Table]:
    """What is printed."""
    strengths = averaged(
        of_part(report, "sine"), ("method", "activation"), SINE_COLUMNS, SINE_COLUMNS
    )
    summary = [
        {
            "method": method, "best activation": top["activation"],
            "AUROC": _pm(top, "auroc"), "MSE": top["mse_prediction"],
            "MSE of noise": top["mse_aleatoric"],
            f"activations above {GOOD}": sum(row["auroc"] > GOOD for row in same),
            "mean AUROC": float(np.mean([row["auroc"] for row in same])),
        }
        for (method,), same in grouped(strengths, "method").items()
        for top in [max(same, key=lambda row: row["auroc"])]
    ]  # fmt: skip
    combined = averaged(of_part(report, "combined"), ("kind", "method"), COLUMNS, COLUMNS)
    partly = averaged(of_part(report, "partial"), ("site", "method", "members"), COLUMNS, COLUMNS)
    found = [
        Table.from_rows("noisy sine: each method at its best activation", summary),
        Table.from_rows(
            "Dirty-MNIST: means and standard errors over seeds",
            _shown(table(report), "method", "source"),
        ),
        Table.from_rows("strengths, on held-out images", of_part(report, "strengths")),
        Table.from_rows("moment passes of ensembles", _shown(combined, "kind", "method")),
        Table.from_rows("which layers are random", _shown(partly, "site", "method", "members")),
        *(Table.from_rows(title, of_part(report, part)) for part, title in COSTS.items()),
    ]  # fmt: skip
    return [one for one in found if one.rows]


COSTS = {
    "prediction": "a prediction, milliseconds",
    "training": "an epoch of the same images, milliseconds",
    "members": "members trained as one program",
}


def _shown(rows: Iterable[Row], *keys: str) -> list[Row]:
    return [
        {**{k: row[k] for k in keys}, "seeds": row["seeds"], **{c: _pm(row, c) for c in COLUMNS}}
        for row in rows
    ]


def _pm(row: Row, column: str) -> str:
    spread = row.get(f"{column} error")
    return f"{row[column]:.4f}" + (f" ± {spread:.4f}" if spread is not None else "")


def judge(report: Report) -> None:
    """The source's claims, and the study's own."""
    _judge_sine(report)
    _judge_table(report)
    _judge_combined(report)
    _judge_cost(report)


def _judge_sine(report: Report) -> None:
    rows = sine(report)
    if {"MC dropout", "DE", "RLLE"} > {row["method"] for row in rows}:
        return
    claim = partial(report.check, needs="default")
    works = {
        m: sum(r["auroc"] > GOOD for r in same) for (m,), same in grouped(rows, "method").items()
    }
    tops = best(rows)
    ours = ", ".join(f"{method} {row['auroc']:.3f}" for method, row in tops.items())
    lowest = min(tops, key=lambda method: tops[method]["auroc"])
    claim(
        "sine: the lowest AUROC at its best activation", "MC dropout", ours, lowest == "MC dropout"
    )
    ours = ", ".join(f"{method} {count}" for method, count in works.items())
    order = works["DE"] >= works["RLLE"] >= works["MC dropout"]
    claim(f"sine: activations above {GOOD}", "DE, RLLE, MC dropout", ours, order)
    for method, theirs in SOURCE.items():
        found = tops[method]["activation"]
        if method != "DE":  # which works with several
            claim(f"sine: best activation of {method}", theirs, found, found == theirs)


def _judge_table(report: Report) -> None:
    rows = {row["method"]: row for row in table(report)}
    claim = partial(report.check, needs="default")
    for name in RLLE if {"MAP", "DE, few", *RLLE} <= rows.keys() else ():
        ours, few = rows[name], rows["DE, few"]
        claim(
            f"{name}: AUROC at least {LEAST_AUROC}", SOURCE_AUROC, ours["auroc"],
            ours["auroc"] >= LEAST_AUROC,
        )  # fmt: skip
        gain = ours["auroc"] - few["auroc"]
        claim(f"{name}: AUROC over that of DE, few", "> 0", gain, gain > 0)
        lost = rows["MAP"]["accuracy"] - ours["accuracy"]
        claim(f"{name}: accuracy that MAP has more", NEAR, lost, lost <= NEAR)
    if {"heads", *FREE} <= rows.keys():
        top = max(FREE, key=lambda name: rows[name]["auroc"])
        gain = rows[top]["auroc"] - rows["heads"]["auroc"]
        claim("best AUROC without images from elsewhere, over plain heads", None, gain, gain > 0)


def _judge_combined(report: Report) -> None:
    rows = averaged(of_part(report, "combined"), ("kind", "method"), COLUMNS, COLUMNS)
    for (kind,), same in grouped(rows, "kind").items():
        by = {row["method"]: row["auroc"] for row in same}
        gain = by["PFP x ensemble"] - max(by["PFP"], by["ensemble"])
        claim = f"{kind}: AUROC of moment passes of members over both parents"
        report.check(claim, None, gain, gain >= 0, needs="default")


def _judge_cost(report: Report) -> None:
    claim = partial(report.check, needs="default")
    for row in of_part(report, "prediction"):
        place = f"{row['network']}, {row['form']}"
        if (theirs := row.get("source_MMACs")) is not None and row["members"] == 10:
            close = abs(row["MMACs"] - theirs) <= 0.051  # it prints one digit, cut off
            report.check(f"{place}: million multiplications", theirs, row["MMACs"], close)
        if row["form"] == "heads" and row["network"] != "sine":
            ours = row["over_one"]
            claim(f"{place}: time over one network's", HEADS_OVER_ONE, ours, ours <= HEADS_OVER_ONE)
        if row["form"] == "networks":
            least = NETWORKS_OVER_HEADS.get(row["network"], 1.0)
            ours = row["over_heads"]
            claim(f"{place}: time over that of heads", least, ours, ours >= least)
    training: dict[str, Any] = {r["method"]: r["over_one"] for r in of_part(report, "training")}
    for name in RLLE if training else ():
        deep = min(training["DE, many, one program"], report.config["members"])
        share = training[name] / deep
        claim(f"{name}: training over that of DE, many", 0.2, share, share <= 0.2)
    for row in of_part(report, "members"):
        ours = row["speedup"]
        claim(
            f"{row['network']}: members as one program over a loop", SPEEDUP, ours, ours >= SPEEDUP
        )
