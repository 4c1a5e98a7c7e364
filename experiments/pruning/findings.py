"""What the study claims, prints and draws, of means over seeds."""

from collections.abc import Iterable
from functools import partial

import numpy as np
from scipy.stats import spearmanr

from experiments import harness as h
from experiments import margins
from experiments.classifiers import counted_images
from experiments.harness import Report, Row

NEAR = 0.01
"""Accuracies that differ by less are the same."""
ENGINES = ("xla", "tvm")

unpruned = h.means(h.where(part="whole"), ("subject",), ("accuracy", "bytes"))
scores = h.means(
    h.where(part="scores"),
    ("subject", "macs", "score"),
    ("macs_left", "params_left", "before", "after"),
)
methods = h.means(
    lambda report: [row | {"kB": row["bytes"] / 1000} for row in h.where(part="sparsity")(report)],
    ("subject", "share", "method"),
    ("kB", "before", "after"),
)
starts = h.means(h.where(part="small"), ("subject", "macs", "start", "epochs"), ("after",))
timed = h.where(part="time")


NAMED = "l1"
"""The score that is held to random channels: the thesis' (Galen's)."""
SPENT = 0.9
"""Share of its budget that a plan uses at least, so that it isn't better for being larger."""


def over_random(report: Report) -> Iterable[Row]:
    """Selects what the named score gains over random channels at each cost, and what plans leave.

    The best of many scores would gain something by chance.
    """
    images = counted_images(report.config)
    for (subject, macs), same in h.grouped(
        h.where(part="scores")(report), "subject", "macs"
    ).items():
        of = {score: rows for (score,), rows in h.grouped(same, "score").items()}
        pair = [[row["after"] for row in of.get(score, ())] for score in (NAMED, "random")]
        left = [row["macs_left"] for row in same]
        gain, tie = None, 0.0
        if all(pair):
            gain = float(np.mean(pair[0]) - np.mean(pair[1]))
            tie = margins.of_accuracies(images[subject], *pair)
        yield {
            "at": f"{subject} at {macs:g}", "macs": macs, "gain": gain, "tie": tie,
            "left": min(left), "most": max(left),
        }  # fmt: skip


def rethought(report: Report) -> Iterable[Row]:
    """Selects what training on gains over new weights, trained as long and in full."""
    images = counted_images(report.config)
    for (subject, macs), same in h.grouped(starts(report), "subject", "macs").items():
        on = next(row["after"] for row in same if row["start"] == "pruned")
        new = sorted((row["epochs"], row["after"]) for row in same if row["start"] == "new")
        (_, short), (_, long) = new
        tie = margins.of_shares(images[subject], on, short)
        yield {"at": f"{subject} at {macs:g}", "short": on - short, "long": on - long, "tie": tie}


def plans(report: Report) -> list[Row]:
    """Selects the timed plans, the smallest first."""
    plans = [row for row in timed(report) if row["plan"] != "whole"]
    return sorted(plans, key=lambda row: row["macs_left"])


def correlations(report: Report) -> Iterable[Row]:
    """Selects how far multiply-accumulates order plans by time, and how much less is saved."""
    for (subject,), same in h.grouped(plans(report), "subject").items():
        macs = [row["macs_left"] for row in same]
        row: Row = {"subject": subject, "plans": len(same)}
        for engine in ENGINES:
            left = [r[f"{engine}_time_left"] for r in same]
            row[f"{engine} Spearman"] = float(spearmanr(macs, left).statistic)
            row[f"{engine} time over MACs left"] = float(np.median(np.divide(left, macs)))
        yield row


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        f"{{at}}: {NAMED} over random channels, trained on, by two errors ({{tie:.3f}})", "gain",
        h.above("tie"), "> 0", over_random,
    ),
    h.Claim(
        f"{{at}}: multiply-accumulates that plans leave, between {SPENT:.0%} of the budget and it",
        "left", lambda row, left: SPENT * row["macs"] <= left and row["most"] <= row["macs"],
        lambda row: row["macs"], over_random, shown="{left:.4g} to {most:.4g}",
    ),
    claim(
        "{at}: trained on over new weights trained as long, by two errors ({tie:.3f})", "short",
        h.above("tie"), "> 0", rethought,
    ),
    claim(
        "{at}: trained on over new weights trained in full (Liu et al.)", "long", h.at_most(NEAR),
        "<= 0", rethought,
    ),
    *(
        claim(f"{{subject}}, {engine}: {what}", f"{engine} {column}", rule, source, correlations)
        for engine in ENGINES
        for what, column, rule, source in (
            ("rank correlation of multiply-accumulates and time", "Spearman", h.below(1), "< 1"),
            ("time left over multiply-accumulates left", "time over MACs left", h.above(1), "> 1"),
        )
    ),
)  # fmt: skip

TABLES = (
    h.Listing("whole", ("subject", "accuracy"), unpruned), h.Listing("scores", of=scores),
    h.Listing("single weights", of=methods), h.Listing("the small network", of=starts),
    h.Listing("time", of=timed), h.Listing("time and multiply-accumulates", of=correlations),
)  # fmt: skip


def ranked(report: Report) -> list[Row]:
    """Selects the scores, and the whole network's accuracy as if it were one more."""
    rows = [*scores(report)]
    accuracy = {row["subject"]: row["accuracy"] for row in unpruned(report)}
    for subject, macs in h.grouped(rows, "subject", "macs"):
        same = {"subject": subject, "macs": macs, "score": "whole network"}
        rows.append(same | {"after": accuracy[subject]})
    return rows


def sizes(report: Report) -> list[Row]:
    """Selects accuracies by size: single weights, channels and the whole network."""
    size = {row["subject"]: row["bytes"] / 1000 for row in unpruned(report)}
    channels = [
        row | {"method": "channels, l1", "kB": row["params_left"] * size[row["subject"]]}
        for row in scores(report) if row["score"] == "l1"
    ]  # fmt: skip
    uncut = [
        row | {"method": "whole network", "kB": size[row["subject"]], "after": row["accuracy"]}
        for row in unpruned(report)
    ]
    return sorted([*methods(report), *channels, *uncut], key=lambda row: row["kB"])


PLOTS = (
    h.Plot(
        "scores",
        h.Dots(
            "score", {"after": "trained on", "before": "before"}, ranked,
            facet="{subject}, {macs:.0%} of MACs", axes={"xlabel": "accuracy"},
        ),
    ),
    h.Plot(
        "times",
        h.Curves(
            "macs_left",
            {"xla_time_left": "XLA", "tvm_time_left": "TVM", "macs_left": "time = MACs"},
            plans, facet="{subject}", style={"XLA": "o", "TVM": "s", "time = MACs": "-"},
            axes={"xlabel": "multiply-accumulates left", "ylabel": "time left"},
        ),
    ),
    h.Plot(
        "sparsity",
        h.Curves(
            "kB", "after", sizes, "{method}", "{subject}",
            style={"channels, l1": "k^", "whole network": "ks"},
            axes={
                "xscale": "log", "xlabel": "kB of parameters, float32 and masks",
                "ylabel": "accuracy after training on",
            },
        ),
    ),
)  # fmt: skip
