"""Means over seeds, and what the study claims."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import spearmanr

from experiments.harness import Report, Row, Table, averaged, grouped

SCORES = (
    "random", "l1", "l2", "geometric median", "slimming", "taylor", "brain damage",
    "reconstruction", "determinantal",
)  # fmt: skip
NEAR = 0.01
"""Accuracies that differ by less are the same."""


def whole(rows: Sequence[Row]) -> dict[str, float]:
    """Accuracy of the whole networks by subject."""
    own = [row for row in rows if row["part"] == "whole"]
    return {row["subject"]: row["accuracy"] for row in averaged(own, ("subject",), ("accuracy",))}


def by_score(rows: Sequence[Row]) -> list[Row]:
    """Scores at each cost, means over seeds."""
    own = [row for row in rows if row["part"] == "scores"]
    columns = ("macs_left", "params_left", "before", "after")
    return averaged(own, ("subject", "macs", "uniform", "score"), columns)


def by_method(rows: Sequence[Row]) -> list[Row]:
    """Single weights, means over seeds."""
    own = [row | {"kB": row["bytes"] / 1000} for row in rows if row["part"] == "sparsity"]
    return averaged(own, ("subject", "share", "method"), ("kB", "before", "after"))


def by_start(rows: Sequence[Row]) -> list[Row]:
    """The small network from different starts."""
    own = [row for row in rows if row["part"] == "small"]
    return averaged(own, ("subject", "macs", "start", "epochs"), ("after",))


def correlations(rows: Sequence[Row]) -> list[Row]:
    """How far multiply-accumulates order plans by time, and how much less than them is saved."""
    own = [row for row in rows if row["part"] == "time" and row["plan"] != "whole"]
    found = []
    for (subject,), same in grouped(own, "subject").items():
        macs = [row["macs_left"] for row in same]
        row: Row = {"subject": subject, "plans": len(same)}
        for engine in ("xla", "tvm"):
            left = [r[f"{engine}_time_left"] for r in same]
            row[f"{engine} Spearman"] = float(spearmanr(macs, left).statistic)
            row[f"{engine} time over MACs left"] = float(np.median(np.divide(left, macs)))
        found.append(row)
    return found


def tables(report: Report) -> Sequence[Table]:
    """What is printed."""
    rows = report.rows
    return [
        Table.from_rows("whole", [{"subject": s, "accuracy": a} for s, a in whole(rows).items()]),
        Table.from_rows("scores", by_score(rows)),
        Table.from_rows("single weights", by_method(rows)),
        Table.from_rows("the small network", by_start(rows)),
        Table.from_rows("time", [r for r in rows if r["part"] == "time"]),
        Table.from_rows("time and multiply-accumulates", correlations(rows)),
    ]


def judge(report: Report) -> None:
    """What the source says, and what papers lead one to expect."""
    scores, starts = by_score(report.rows), by_start(report.rows)
    for (subject, macs), same in grouped(scores, "subject", "macs").items():
        best = max((r for r in same if r["score"] != "random"), key=lambda r: r["after"])
        chance = max(r["after"] for r in same if r["score"] == "random")
        gain = best["after"] - chance
        claim = f"{subject} at {macs:g}: best score ({best['score']}) over random, trained on"
        report.check(claim, "> 0", gain, gain > 0, needs="default")
        found = [r["macs_left"] for r in same]
        claim = f"{subject} at {macs:g}: most multiply-accumulates that a plan leaves"
        report.check(claim, macs, max(found), max(found) <= macs)
    for (subject, macs), same in grouped(starts, "subject", "macs").items():
        by_name = {(r["start"], r["epochs"]): r["after"] for r in same}
        on = next(value for (start, _), value in by_name.items() if start == "pruned")
        short, long = (by_name[key] for key in sorted(k for k in by_name if k[0] == "new"))
        claim = f"{subject} at {macs:g}: trained on over new weights trained as long"
        report.check(claim, "> 0", on - short, on > short, needs="default")
        claim = f"{subject} at {macs:g}: trained on over new weights trained in full (Liu et al.)"
        report.check(claim, "<= 0", on - long, on - long <= NEAR, needs="default")
    for row in correlations(report.rows):
        for engine in ("xla", "tvm"):
            value = row[f"{engine} Spearman"]
            claim = f"{row['subject']}, {engine}: rank correlation of multiply-accumulates and time"
            report.check(claim, "< 1", value, value < 1, needs="default")
            value = row[f"{engine} time over MACs left"]
            claim = f"{row['subject']}, {engine}: time left over multiply-accumulates left"
            report.check(claim, "> 1", value, value > 1, needs="default")
