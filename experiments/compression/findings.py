"""What the study claims, prints and draws, from means over seeds."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from experiments import harness as h
from experiments.harness import Report, Row, averaged, error, grouped, mean

FLOAT = 32
KINDS = {"weights": (True, False), "activations": (False, True), "both": (True, True)}
"""Which of the two have few bits."""
COLOURS = {"weights": "C0", "activations": "C1", "both": "C2"}
NEAR = 0.005
"""Accuracy that 8 bits may cost without training."""
FEW = 4
"""Bits up to which quantization is expected to cost."""


def float_accuracy(report: Report) -> dict[str, float]:
    """Computes the mean accuracy in float32, by subject."""
    own = [row for row in report.rows if row["part"] == "float"]
    return {row["subject"]: row["accuracy"] for row in averaged(own, ("subject",), ("accuracy",))}


def over_bits(report: Report) -> list[Row]:
    """Averages accuracies by subject, by what has few bits, and training, over bits."""
    found = []
    bits = [row for row in report.rows if row["part"] == "bits"]
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
                    own_bits = {f"{b} bits": value for b, value in means.items()}
                    one = {"subject": subject, "quantized": kind, "training": trained}
                    found.append(one | own_bits)
    return found


def methods(report: Report) -> list[Row]:
    """Sets methods side by side: means over seeds with their standard errors."""
    own = [row for row in report.rows if row["part"] == "methods"]
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


def without_training(report: Report) -> list[Row]:
    """Lists methods without training, a column per pair of bits."""
    own = [row for row in report.rows if row["part"] == "without training"]
    found = []
    for (subject, method), same in grouped(own, "subject", "method").items():
        row: Row = {"subject": subject, "method": method}
        for (w, a), equal in grouped(same, "weight_bits", "activation_bits").items():
            row[f"W{w} A{a}"] = mean(r["accuracy"] for r in equal)
        found.append(row)
    return found


def allocated(report: Report) -> list[Row]:
    """Compares allocators at equal bit operations."""
    own = [row for row in report.rows if row["part"] == "allocation"]
    return averaged(own, ("subject", "budget", "allocator"), ("bops", "accuracy"))


def activation_losses(report: Report) -> Iterator[Row]:
    """Selects a row per subject and training: what activations lose beyond weights."""
    for (subject, trained), own in grouped(over_bits(report), "subject", "training").items():
        by = {row["quantized"]: row for row in own}
        if {"weights", "activations"} <= by.keys():
            weights, activations = by["weights"], by["activations"]
            few = [k for k in weights if k.endswith(" bits") and int(k.split()[0]) <= FEW]
            gaps = [weights[k] - activations[k] for k in few if k in activations]
            name = "learned steps" if trained else "without training"
            yield {"subject": subject, "name": name, "gap": float(np.mean(gaps))}


def learned_steps(report: Report) -> Iterator[Row]:
    """Selects a row per subject and width: what learned steps gain over fixed ones."""
    trained = {(row["subject"], row["method"]): row["trained"] for row in methods(report)}
    for subject in float_accuracy(report):
        for bits in (4, 3, 2):
            learned, fixed = (trained.get((subject, f"{m} {bits}")) for m in ("lsq", "fixed"))
            if learned is not None and fixed is not None:
                yield {"subject": subject, "bits": bits, "gain": learned - fixed}


def eight_bits(report: Report) -> Iterator[Row]:
    """Selects a row per subject: what 8 bits lose without training."""
    floats = float_accuracy(report)
    for row in without_training(report):
        if row["method"] == "minmax":
            yield {**row, "lost": floats[row["subject"]] - row["W8 A8"]}


def over_uniform(report: Report) -> Iterator[Row]:
    """Selects a row per subject, budget and allocator: what it gains over uniform bits."""
    for same in grouped(allocated(report), "subject", "budget").values():
        by = {row["allocator"]: row["accuracy"] for row in same}
        for row in same:
            if row["allocator"] != "uniform":
                yield {**row, "gain": row["accuracy"] - by["uniform"]}


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        f"{{subject}}, {{name}}: accuracy that activations lose beyond weights at 2-{FEW} bits",
        "gap", h.above(0), "> 0", activation_losses,
    ),
    claim(
        "{subject}: accuracy that learned steps gain over fixed ones at {bits} bits",
        "gain", h.at_least(0), ">= 0", learned_steps,
    ),
    h.Claim(
        "{subject}: accuracy lost by 8 bits without training", "lost", h.at_most(NEAR), NEAR,
        eight_bits,
    ),
    claim(
        "{subject}: {allocator} over uniform {budget} bits, accuracy", "gain", h.above(0), "> 0",
        over_uniform,
    ),
)  # fmt: skip

TABLES = (
    h.Listing(
        "float",
        of=lambda report: [
            {"subject": subject, "accuracy": value}
            for subject, value in float_accuracy(report).items()
        ],
    ),
    h.Listing("accuracy over bits", of=over_bits),
    h.Listing("methods, with training", of=methods),
    h.Listing("methods, without training", of=without_training),
    h.Listing("bits per layer, without training", of=allocated),
)


def bit_curves(report: Report) -> Iterator[Row]:
    """Selects a curve per subject, by what has few bits and training, and the float accuracy."""
    floats, rows = float_accuracy(report), over_bits(report)
    for row in rows:
        points = {int(k.split()[0]): v for k, v in row.items() if k.endswith(" bits")}
        label = f"{row['quantized']}, {'learned steps' if row['training'] else 'no training'}"
        style = COLOURS[row["quantized"]] + ("o-" if row["training"] else "x:")
        yield {
            **row,
            "bits": [*points],
            "curve": [*points.values()],
            "label": label,
            "style": style,
        }
    for (subject,), same in grouped(rows, "subject").items():
        ends = sorted(int(k.split()[0]) for k in same[0] if k.endswith(" bits"))
        yield {
            "subject": subject, "bits": [ends[0], ends[-1]], "curve": [floats[subject]] * 2,
            "label": "float32", "style": "k-",
        }  # fmt: skip


def sizes(report: Report) -> list[h.Panel]:
    """Makes a panel per subject: accuracy over the size of the parameters."""
    rows = [row for row in methods(report) if row["trained"] is not None]
    return [
        h.Panel(subject, partial(_sizes, report, subject, own))
        for (subject,), own in grouped(rows, "subject").items()
    ]


def _sizes(report: Report, subject: str, own: Sequence[Row], axis: Axes) -> None:
    for kind, marker in (("weights alone", "s"), ("weights and activations", "o")):
        chosen = [r for r in own if (r["activation bits"] == FLOAT) == (marker == "s")]
        axis.errorbar(
            [r["kB"] for r in chosen], [r["trained"] for r in chosen],
            [r["error"] or 0 for r in chosen], fmt=marker, ms=4, label=kind,
        )  # fmt: skip
    whole = h.where(part="float", subject=subject)(report)
    value = float(np.mean([r["accuracy"] for r in whole]))
    axis.plot(whole[0]["bytes"] / 1000, value, "k*", label="float32")
    front: list[Row] = []
    for row in sorted(own, key=lambda row: (row["kB"], -row["trained"])):
        if not front or row["trained"] > front[-1]["trained"]:
            front.append(row)
    axis.step([r["kB"] for r in front], [r["trained"] for r in front], where="post", color="grey",
              lw=0.8, label="Pareto front")  # fmt: skip
    for row in front:
        axis.annotate(row["method"], (row["kB"], row["trained"]), fontsize=7, xytext=(3, -9),
                      textcoords="offset points")  # fmt: skip
    axis.set(xscale="log", xlabel="kB of parameters", ylabel="accuracy")
    axis.set_ylim(bottom=max(0, np.quantile([r["trained"] for r in own], 0.2) - 0.1))


def _upright(axis: Axes, report: Report) -> None:
    axis.tick_params(axis="x", rotation=45)


PLOTS = (
    h.Plot("bits", h.Curves(
        "bits", "curve", bit_curves, "{label}", "{subject}", style="{style}",
        axes={"xlabel": "bits", "ylabel": "accuracy"},
    )),
    h.Plot("sizes", sizes, size=(4.6, 4.4)),
    h.Plot(
        "layers",
        *(
            h.Curves(
                "sites", column, h.where(part="allocation", seed=0), "{allocator}",
                f"{{subject}}, {{budget}} bits: {column.replace('_', ' ')}",
                style=lambda row: "k--" if row["allocator"] == "uniform" else "o-",
                axes={"ylabel": "bits"}, then=_upright,
            )
            for column in ("weight_bits", "activation_bits")
        ),
        columns=2, size=(4.6, 2.8),
    ),
)  # fmt: skip
