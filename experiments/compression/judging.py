"""Means over seeds, and what the study claims."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments.harness import Report, Row, Table, averaged, error, grouped, mean

FLOAT = 32
KINDS = {"weights": (True, False), "activations": (False, True), "both": (True, True)}
"""Which of the two have few bits."""
NEAR = 0.005
"""Accuracy that 8 bits may cost without training."""
FEW = 4
"""Bits up to which quantization is expected to cost."""


def float_accuracy(rows: Sequence[Row]) -> dict[str, float]:
    """By subject."""
    own = [row for row in rows if row["part"] == "float"]
    return {row["subject"]: row["accuracy"] for row in averaged(own, ("subject",), ("accuracy",))}


def over_bits(rows: Sequence[Row]) -> list[Row]:
    """Accuracy by subject, by what has few bits, with and without training, over bits."""
    found = []
    bits = [row for row in rows if row["part"] == "bits"]
    for (subject,), own in grouped(bits, "subject").items():
        for trained in (False, True):
            column = "trained" if trained else "accuracy"
            for kind, (weights, activations) in KINDS.items():
                points = defaultdict(list)
                for row in own:
                    w, a = row["weight_bits"], row["activation_bits"]
                    if column in row and (w < FLOAT, a < FLOAT) == (weights, activations):
                        points[min(w, a)].append(row[column])
                means = {int(b): mean(points[b]) for b in sorted(points)}
                if means:
                    found.append(
                        {
                            "subject": subject,
                            "quantized": kind,
                            "training": trained,
                            **_named(means),
                        }
                    )
    return found


def methods(rows: Sequence[Row]) -> list[Row]:
    """Methods side by side: means over seeds with their standard errors."""
    own = [row for row in rows if row["part"] == "methods"]
    found = []
    for (subject, method), same in grouped(own, "subject", "method").items():
        trained = [row["trained"] for row in same]
        first = same[0]
        found.append(
            {
                "subject": subject, "method": method, "family": first["family"],
                "weight bits": first["weight_bits"], "activation bits": first["activation_bits"],
                "untrained": mean(row["untrained"] for row in same), "trained": mean(trained),
                "error": error(trained), "kB": mean(row.get("bytes") for row in same),
            }
        )  # fmt: skip
        if found[-1]["kB"] is not None:
            found[-1]["kB"] /= 1000
    return found


def without_training(rows: Sequence[Row]) -> list[Row]:
    """Methods without training, a column per pair of bits."""
    own = [row for row in rows if row["part"] == "without training"]
    found = []
    for (subject, method), same in grouped(own, "subject", "method").items():
        row: Row = {"subject": subject, "method": method}
        for (w, a), equal in grouped(same, "weight_bits", "activation_bits").items():
            row[f"W{w} A{a}"] = mean(r["accuracy"] for r in equal)
        found.append(row)
    return found


def allocated(rows: Sequence[Row]) -> list[Row]:
    """Allocators at equal bit operations."""
    own = [row for row in rows if row["part"] == "allocation"]
    return averaged(own, ("subject", "budget", "allocator"), ("bops", "accuracy"))


def tables(report: Report) -> Sequence[Table]:
    """What is printed."""
    rows = report.rows
    floats = [{"subject": s, "accuracy": a} for s, a in float_accuracy(rows).items()]
    return [
        Table.from_rows("float", floats),
        Table.from_rows("accuracy over bits", over_bits(rows)),
        Table.from_rows("methods, with training", methods(rows)),
        Table.from_rows("methods, without training", without_training(rows)),
        Table.from_rows("bits per layer, without training", allocated(rows)),
    ]


def judge(report: Report) -> None:
    """The source's statement, and what the methods' papers lead one to expect."""
    rows = report.rows
    floats = float_accuracy(rows)
    curves = over_bits(rows)
    for subject in floats:
        own = {(c["quantized"], c["training"]): c for c in curves if c["subject"] == subject}
        for training, name in ((False, "without training"), (True, "learned steps")):
            pair = [own.get((kind, training)) for kind in ("weights", "activations")]
            if None not in pair:
                _costs_more(report, subject, name, *pair)
        _learned_steps(report, subject, [m for m in methods(rows) if m["subject"] == subject])
        of_range = [r for r in without_training(rows) if r["subject"] == subject]
        for row in of_range:
            if row["method"] == "minmax":
                lost = floats[subject] - row["W8 A8"]
                claim = f"{subject}: accuracy lost by 8 bits without training"
                report.check(claim, NEAR, lost, lost <= NEAR)
        _allocators(report, subject, [a for a in allocated(rows) if a["subject"] == subject])


def _costs_more(report: Report, subject: str, name: str, weights: Any, activations: Any) -> None:
    few = [k for k in weights if k.endswith(" bits") and int(k.split()[0]) <= FEW]
    gaps = [weights[k] - activations[k] for k in few if k in activations]
    claim = f"{subject}, {name}: accuracy that activations lose beyond weights at 2-{FEW} bits"
    report.check(claim, "> 0", float(np.mean(gaps)), float(np.mean(gaps)) > 0, needs="default")


def _learned_steps(report: Report, subject: str, found: Sequence[Row]) -> None:
    by_name = {row["method"]: row for row in found}
    for bits in (4, 3, 2):
        learned, fixed = by_name.get(f"lsq {bits}"), by_name.get(f"fixed {bits}")
        if learned and fixed and None not in (learned["trained"], fixed["trained"]):
            gain = learned["trained"] - fixed["trained"]
            claim = f"{subject}: accuracy that learned steps gain over fixed ones at {bits} bits"
            report.check(claim, ">= 0", gain, gain >= 0, needs="default")


def _allocators(report: Report, subject: str, found: Sequence[Row]) -> None:
    uniform = {row["budget"]: row["accuracy"] for row in found if row["allocator"] == "uniform"}
    for row in found:
        if row["allocator"] != "uniform":
            gain = row["accuracy"] - uniform[row["budget"]]
            claim = f"{subject}: {row['allocator']} over uniform {row['budget']} bits, accuracy"
            report.check(claim, "> 0", gain, gain > 0, needs="default")


def _named(means: dict[int, float | None]) -> dict[str, float | None]:
    return {f"{bits} bits": value for bits, value in means.items()}
