"""Claims, tables and the figure, from the rows."""

from functools import partial

from experiments import harness as h
from experiments.harness import Report, Row

METRICS = ("auroc", "aupr", "fpr95")
detected, shifted = h.where(part="detection"), h.where(part="shift")


def by_score(report: Report) -> list[Row]:
    """A row for each score and posterior: its AUROC on every set."""
    found = []
    for (posterior, score), rows in h.grouped(detected(report), "posterior", "score").items():
        each = {row["outside"]: row["auroc"] for row in rows}
        found.append({"posterior": posterior, "score": score, **each})
    return found


def severest(report: Report) -> list[Row]:
    """A row for each posterior: accuracy at the least and the largest severity."""
    found = []
    for (posterior,), rows in h.grouped(shifted(report), "posterior").items():
        ends = [
            h.mean(row["accuracy"] for row in rows if row["severity"] == severity)
            for severity in (0, max(row["severity"] for row in rows))
        ]
        found.append({"posterior": posterior, "clean": ends[0], "worst": ends[1]})
    return found


curves = h.means(shifted, ("posterior", "severity", "score"), ("accuracy", "auroc"))
accuracies = h.means(shifted, ("posterior", "severity"), ("accuracy",))

CLAIMS = (
    h.Claim(
        "{posterior}, {score}, {outside}: as scikit-learn", "scikit_error", h.at_most(1e-4),
        of=detected, when=lambda row: row["score"] in ("MSP", "ViM"),
    ),
    h.Claim("{posterior}: accuracy", "clean", h.at_least(0.9), of=severest),
    h.Claim("{posterior}: accuracy falls with severity", "worst", h.below("clean"), of=severest),
    h.Claim(
        "{posterior}: AUROC of ViM on {outside}", "auroc", h.at_least(0.9), of=detected,
        needs="default", when=lambda row: row["score"] == "ViM" and row["kind"] == "far",
    ),
)  # fmt: skip

TABLES = (
    h.Listing("AUROC by score and posterior", of=by_score),
    h.Listing("all figures", ("posterior", "score", "outside", "kind", *METRICS), detected),
    h.Listing(
        "under corruptions, means over them",
        ("posterior", "severity", "score", "accuracy", "auroc"), curves,
    ),
)  # fmt: skip

_curve = partial(h.Curves, "severity", hue="{posterior}")
PLOTS = (
    h.Plot(
        "scores",
        h.Dots(
            "score", "auroc", detected, hue="{posterior}", facet="{outside} ({kind})",
            guides=(0.5,), axes={"xlabel": "AUROC"},
        ),
        columns=3, size=(4.2, 4.6),
    ),
    h.Plot(
        "shift",
        _curve("accuracy", accuracies, axes={"xlabel": "severity", "ylabel": "accuracy"}),
        _curve(
            "auroc", curves, facet="{score}",
            axes={"xlabel": "severity", "ylabel": "AUROC of corrupted images"},
        ),
        columns=3, size=(4.2, 3.4),
    ),
)  # fmt: skip
