"""What the study claims."""

from collections.abc import Sequence

import numpy as np

from experiments.harness import Report, Row, Table

MODES_WITHIN, SUMS_WITHIN, EFFECTIVE_WITHIN = 0.1, 0.02, 0.05
ACCURACY, DETECTION, LOST, LOST_DETECTION, STEP = 0.99, 0.95, 0.003, 0.02, 1.3
CHANCE = 0.01
COLLAPSED = 0.5
"""What is left of the way from chance to the best, where a figure has collapsed."""
TIME = ("method", "samples", "ms", "random share", "readings", "ratio")
LEVELS = ("level_1", "level_2")
COLUMNS = (
    "accuracy",
    "auroc_nine",
    "entropy_nine",
    "auroc_other",
    "entropy_other",
    "mi_known",
    "mi_nine",
    "valley",
    "one_peak",
)


def of(rows: Sequence[Row], part: str, what: str = "") -> list[Row]:
    """The rows of a part."""
    return [r for r in rows if r["part"] == part and (not what or r["what"] == what)]


def collapses(rows: Sequence[Row]) -> tuple[int, int] | None:
    """The least bit widths with more than half of the best accuracy, and of the best detection."""
    found = sorted(of(rows, "bits"), key=lambda r: r["bits"])
    if len(found) < 2:
        return None
    least = []
    for name, chance in (("accuracy", 1 / 9), ("auroc_nine", 0.5)):
        best = max(r[name] for r in found)
        good = [r["bits"] for r in found if r[name] - chance > COLLAPSED * (best - chance)]
        least.append(min(good))
    return least[0], least[1]


def tables(report: Report) -> Sequence[Table]:
    """What is printed."""
    rows = report.rows
    light = ("intensity", "mean", "variance", "skewness", "pvalue")
    found = [
        Table.from_rows("variance", of(rows, "light", "variance"), light),
        Table.from_rows("fit", of(rows, "light", "fit"), ("modes", "photons", "electronic")),
        Table.from_rows(
            "sums", of(rows, "light", "sum"), ("carriers", "mean", "std", "without", "split")
        ),
        Table.from_rows(
            "correlation",
            of(rows, "light", "correlation"),
            ("times", "channels", "time", "channel", "effective"),
        ),
        Table.from_rows("digits", of(rows, "digits"), ("seed", "model", *COLUMNS, *LEVELS)),
        Table.from_rows("without light", of(rows, "dark"), ("seed", *COLUMNS)),
        Table.from_rows("beside", of(rows, "beside"), ("method", *COLUMNS)),
        Table.from_rows("noise budget", of(rows, "budget"), ("level", *COLUMNS)),
        Table.from_rows("samples", of(rows, "samples"), ("samples", *COLUMNS)),
        Table.from_rows("bits", of(rows, "bits"), ("bits", *COLUMNS)),
        Table.from_rows("guides", of(rows, "guides"), ("guide", "kl", "nats", *COLUMNS, *LEVELS)),
        Table.from_rows("time", of(rows, "time"), TIME),
    ]
    return [table for table in found if table.rows]


def judge(report: Report) -> None:
    """What the source says, held to the bounds of the issue."""
    _judge_light(report)
    rows = report.rows
    for kind in ("gaussian", "physical"):
        own = [r for r in of(rows, "digits") if r["model"] == kind]
        if not own:
            continue
        claim = f"digits 0 to 8, {kind} model: accuracy, mean over seeds"
        value = float(np.mean([r["accuracy"] for r in own]))
        report.check(claim, f">= {ACCURACY}", value, value >= ACCURACY, needs="default")
        claim = f"digit 9, {kind} model: AUROC of mutual information, mean over seeds"
        value = float(np.mean([r["auroc_nine"] for r in own]))
        report.check(claim, f">= {DETECTION}", value, value >= DETECTION, needs="default")
        claim = f"two peaks of the logarithm of mutual information, {kind} model: shallowest valley"
        value = max(r["valley"] for r in own)
        report.check(claim, "< 1", value, value < 1, needs="default")
        claim = f"one peak would do, {kind} model: largest p of Silverman's test"
        value = max(r["one_peak"] for r in own)
        report.check(claim, f"< {CHANCE}", value, value < CHANCE, needs="default")
    for name, bound in (("accuracy", LOST), ("auroc_nine", LOST_DETECTION)):
        pairs: dict[int, Row] = {r["seed"]: {} for r in of(rows, "digits")}
        for r in of(rows, "digits"):
            pairs[r["seed"]][r["model"]] = r[name]
        if pairs:
            value = max(abs(p["gaussian"] - p["physical"]) for p in pairs.values())
            claim = f"{name}: most that the physical model differs from the surrogate"
            report.check(claim, f"<= {bound}", value, value <= bound, needs="default")
    if (least := collapses(rows)) is not None:
        claim = "bits at which accuracy collapses, less those at which detection does"
        value = least[0] - least[1]
        report.check(claim, "within 1", value, abs(value) <= 1, needs="default")
    for row in of(rows, "time"):
        if "ratio" in row:
            claim = "operations of a training step with the surrogate over one without"
            report.check(claim, f"<= {STEP}", row["ratio"], row["ratio"] <= STEP)
        if row["method"] == "physical":
            claim = "physical samples of a batch in one program"
            report.check(claim, 100, row["samples"], row["samples"] == 100)


def _judge_light(report: Report) -> None:
    rows = report.rows
    if not of(rows, "light"):
        return
    values = [r["pvalue"] for r in of(rows, "light", "variance")]
    bound = 0.01 / len(values)
    claim = f"least p of {len(values)} chi-square tests against the negative binomial (Bonferroni)"
    report.check(claim, f"> {bound:g}", min(values), min(values) > bound)
    (fit,) = of(rows, "light", "fit")
    off = abs(fit["modes"] - fit["source_modes"])
    report.check("fitted modes", fit["source_modes"], fit["modes"], off <= MODES_WITHIN,
                 needs="default")  # fmt: skip
    value = max(abs(r["split"] - 1) for r in of(rows, "light", "sum"))
    claim = "variance of a split intensity over I + I²/(kM), largest deviation"
    report.check(claim, f"<= {SUMS_WITHIN}", value, value <= SUMS_WITHIN, needs="default")
    sums = of(rows, "light", "sum")
    means = np.array([r["mean"] / r["carriers"] for r in sums])
    value = float(np.ptp(means) / means.mean())
    report.check("means add linearly, spread of mean over carriers", f"<= {SUMS_WITHIN}", value,
                 value <= SUMS_WITHIN, needs="default")  # fmt: skip
    value = max(
        abs(r["effective"] / r["source_effective"] - 1) for r in of(rows, "light", "correlation")
    )
    claim = "effective samples over theory, largest deviation"
    report.check(claim, f"<= {EFFECTIVE_WITHIN}", value, value <= EFFECTIVE_WITHIN, needs="default")
    value = max(abs(r["std"] / r["source_std"] - 1) for r in of(rows, "light", "range"))
    claim = "deviations of encoded intensities over those asked for, largest deviation"
    report.check(claim, "<= 0.05", value, value <= 0.05, needs="default")
