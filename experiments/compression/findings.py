"""What the study claims, prints and draws, from means over seeds."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from experiments import harness as h
from experiments import margins
from experiments.classifiers import counted_images
from experiments.harness import Report, Row, averaged, error, grouped, mean

FLOAT = 32
KINDS = {(True, False): "weights", (False, True): "activations", (True, True): "both"}
"""What has few bits."""
COLOURS = {"weights": "C0", "activations": "C1", "both": "C2"}
NEAR = 0.005
"""Accuracy that 8 bits may cost without training."""
FEW = 4
"""Bits up to which quantization is expected to cost."""


def float_accuracy(report: Report) -> dict[str, float]:
    """Computes the mean accuracy in float32, by subject."""
    float_rows = averaged(h.where(part="float")(report), ("subject",), ("accuracy",))
    return {row["subject"]: row["accuracy"] for row in float_rows}


def _bits(report: Report) -> Iterator[Row]:
    """Selects accuracies without and with training, by what has few bits."""
    for trained, column in ((False, "accuracy"), (True, "trained")):
        for row in h.where(part="bits")(report):
            w, a = row["weight_bits"], row["activation_bits"]
            kind = KINDS.get((w < FLOAT, a < FLOAT))
            if kind and column in row:
                one = {"subject": row["subject"], "quantized": kind, "training": trained}
                yield one | {"bits": int(min(w, a)), "value": row[column]}


over_bits = h.means(_bits, ("subject", "training", "quantized", "bits"), ("value",))


def methods(report: Report) -> list[Row]:
    """Sets methods side by side: means over seeds with their standard errors."""
    averages = []
    methods = h.where(part="methods")(report)
    for (subject, method), same in grouped(methods, "subject", "method").items():
        trained = [row["trained"] for row in same]
        first = same[0]
        averages.append(
            {
                "subject": subject, "method": method, "family": first["family"],
                "weight bits": first["weight_bits"], "activation bits": first["activation_bits"],
                "untrained": mean(row["untrained"] for row in same), "trained": mean(trained),
                "error": error(trained), "kB": mean(row.get("bytes") for row in same),
            }
        )  # fmt: skip
        if averages[-1]["kB"] is not None:
            averages[-1]["kB"] /= 1000
    return averages


without_training = h.pivot(
    h.means(
        h.where(part="without training"),
        ("subject", "method", "weight_bits", "activation_bits"), ("accuracy",),
    ),
    ("subject", "method"), "W{weight_bits} A{activation_bits}", "accuracy",
)  # fmt: skip
allocated = h.means(
    h.where(part="allocation"), ("subject", "budget", "allocator"), ("bops", "accuracy")
)


def activation_losses(report: Report) -> Iterator[Row]:
    """Selects a row per subject and training: what activations lose beyond weights."""
    images = counted_images(report.config)
    for (subject, trained), same in grouped(over_bits(report), "subject", "training").items():
        by = {(row["quantized"], row["bits"]): row["value"] for row in same}
        pairs = [
            (value, by["activations", bits]) for (kind, bits), value in by.items()
            if kind == "weights" and bits <= FEW and ("activations", bits) in by
        ]  # fmt: skip
        if pairs:
            name = "learned steps" if trained else "without training"
            ties = [margins.of_shares(images[subject], *pair) for pair in pairs]
            yield {
                "subject": subject, "name": name, "gap": float(np.mean([w - a for w, a in pairs])),
                "tie": float(np.linalg.norm(ties)) / len(ties),
            }  # fmt: skip


def learned_steps(report: Report) -> Iterator[Row]:
    """Selects a row per subject and width: what learned steps gain over fixed ones."""
    images = counted_images(report.config)
    trained = {
        place: [row["trained"] for row in same]
        for place, same in grouped(h.where(part="methods")(report), "subject", "method").items()
    }
    for subject in float_accuracy(report):
        for bits in (4, 3, 2):
            pair = [trained.get((subject, f"{m} {bits}")) for m in ("lsq", "fixed")]
            if all(pair):
                learned, fixed = (one for one in pair if one)
                yield {
                    "subject": subject, "bits": bits,
                    "gain": float(np.mean(learned) - np.mean(fixed)),
                    "tie": margins.of_accuracies(images[subject], learned, fixed),
                }  # fmt: skip


def eight_bits(report: Report) -> Iterator[Row]:
    """Selects a row per subject: what 8 bits lose without training."""
    floats = float_accuracy(report)
    for row in without_training(report):
        if row["method"] == "minmax":
            yield {**row, "lost": floats[row["subject"]] - row["W8 A8"]}


def over_uniform(report: Report) -> Iterator[Row]:
    """Selects a row per subject, budget and allocator: what it gains over uniform bits."""
    images = counted_images(report.config)
    for same in grouped(allocated(report), "subject", "budget").values():
        by = {row["allocator"]: row["accuracy"] for row in same}
        for row in same:
            if row["allocator"] != "uniform":
                pair = row["accuracy"], by["uniform"]
                tie = margins.of_shares(images[row["subject"]], *pair)
                yield {**row, "gain": pair[0] - pair[1], "tie": tie}


claim = partial(h.Claim, needs="default")
CLAIMS = (
    claim(
        f"{{subject}}, {{name}}: accuracy that activations lose beyond weights at 2-{FEW} bits, "
        "by two errors ({tie:.3f})",
        "gap", h.above("tie"), "> 0", activation_losses,
        regardless=("subjects",),  # whichever network was asked for
    ),
    claim(
        "{subject}: accuracy that learned steps gain over fixed ones at {bits} bits, by two errors "
        "({tie:.3f})",
        "gain", h.above("tie"), "> 0", learned_steps,
    ),
    h.Claim(
        "{subject}: accuracy lost by 8 bits without training", "lost", h.at_most(NEAR), NEAR,
        eight_bits,
    ),
    claim(
        "{subject}: {allocator} over uniform {budget} bits, accuracy, by two errors ({tie:.3f})",
        "gain", h.above("tie"), "> 0", over_uniform,
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
    h.Listing(
        "accuracy over bits",
        of=h.pivot(over_bits, ("subject", "quantized", "training"), "{bits} bits", "value"),
    ),
    h.Listing("methods, with training", of=methods),
    h.Listing("methods, without training", of=without_training),
    h.Listing("bits per layer, without training", of=allocated),
)


def bit_curves(report: Report) -> Iterator[Row]:
    """Selects accuracy over bits, with what plots say of it, and the float accuracy."""
    floats, rows = float_accuracy(report), over_bits(report)
    for row in rows:
        label = f"{row['quantized']}, {'learned steps' if row['training'] else 'no training'}"
        style = COLOURS[row["quantized"]] + ("o-" if row["training"] else "x:")
        yield row | {"label": label, "style": style}
    for (subject,), same in grouped(rows, "subject").items():
        bits = [row["bits"] for row in same]
        for end in (min(bits), max(bits)):
            one: Row = {"subject": subject, "bits": end, "value": floats[subject]}
            yield one | {"label": "float32", "style": "k-"}


def sizes(report: Report) -> list[h.Panel]:
    """Makes a panel per subject: accuracy over the size of the parameters."""
    rows = [row for row in methods(report) if row["trained"] is not None]
    return [
        h.Panel(subject, partial(_sizes, report, subject, same))
        for (subject,), same in grouped(rows, "subject").items()
    ]


def _sizes(report: Report, subject: str, own: Sequence[Row], axis: Axes) -> None:
    for kind, marker in (("weights alone", "s"), ("weights and activations", "o")):
        chosen = [r for r in own if (r["activation bits"] == FLOAT) == (marker == "s")]
        axis.errorbar(
            [r["kB"] for r in chosen], [r["trained"] for r in chosen],
            [r["error"] or 0 for r in chosen], fmt=marker, ms=4, label=kind,
        )  # fmt: skip
    unquantized = h.where(part="float", subject=subject)(report)
    value = float(np.mean([r["accuracy"] for r in unquantized]))
    axis.plot(unquantized[0]["bytes"] / 1000, value, "k*", label="float32")
    front: list[Row] = []
    for row in sorted(own, key=lambda row: (row["kB"], -row["trained"])):
        if not front or row["trained"] > front[-1]["trained"]:
            front.append(row)
    axis.step([r["kB"] for r in front], [r["trained"] for r in front], where="post", color="grey",
              lw=0.8, label="Pareto front")  # fmt: skip
    for row in front:
        axis.annotate(row["method"], (row["kB"], row["trained"]), fontsize=7, xytext=(5, -10),
                      textcoords="offset points")  # fmt: skip
    axis.set(xscale="log", xlabel="kB of parameters", ylabel="accuracy")
    low, high = np.quantile([r["trained"] for r in own], (0.2, 1))
    axis.set_ylim(bottom=max(0, 2 * low - high - 0.01))  # those far below say nothing of the front


def _upright(axis: Axes, report: Report) -> None:
    axis.tick_params(axis="x", rotation=45)


PLOTS = (
    h.Plot("bits", h.Curves(
        "bits", "value", bit_curves, "{label}", "{subject}", style="{style}",
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
