"""The study's pictures."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import Report

DOMAINS = {"clean": "C0", "ambiguous": "C1", "ood": "C3"}


def draw(report: Report) -> dict[str, Figure]:
    """All pictures."""
    networks = list(dict.fromkeys(row["network"] for row in report.extra["sweep"]))
    pairs = [f"{name} {way}" for name in networks for way in ("svi", "moments")]
    examples = {f"examples-{name}": draw_examples(report, name) for name in networks}
    return {
        "data": draw_data(report),
        "scatter": draw_scatter(report),
        "histograms": draw_histograms(report, pairs),
        "samples": draw_counts(report, networks),
        "calibration": draw_sweep(report, networks),
        **examples,
    }


def names(report: Report) -> dict[str, str]:
    """What the domains are called in a picture."""
    source, ood = report.config["data"]["source"], report.config["ood"]
    return {"clean": source, "ambiguous": "ambiguous", "ood": ood}


def draw_data(report: Report) -> Figure:
    """Ambiguous digits in the order of their entropy, and how their entropies are spread."""
    figure = plt.figure(figsize=(12, 5), layout="constrained")
    left, right = np.ravel(np.asarray(figure.subfigures(1, 2, width_ratios=(1.6, 1))))
    axes = left.subplots(5, 8)
    shown = zip(axes.flat, *(report.arrays[f"data/{n}"] for n in ("images", "probs")), strict=True)
    for axis, image, probs in shown:
        axis.imshow(image, cmap="gray_r")
        likely = np.argsort(probs)[::-1][:2]
        axis.set_title(", ".join(f"{c}: {probs[c]:.0%}" for c in likely), fontsize=7)
        axis.axis("off")
    left.suptitle("ambiguous digits, least to most uncertain", fontsize=10)
    axis = right.subplots()
    data = report.config["data"]
    bins = np.linspace(data["smallest_entropy"], data["largest_entropy"], 51).tolist()
    for part in ("training", "test"):
        entropies = report.arrays[f"data/{part}"]
        axis.hist(entropies, bins, histtype="step", density=True, label=part)
    axis.set_xlabel("entropy of the ensemble / nats")
    axis.set_ylabel("density")
    return figure


def draw_scatter(report: Report) -> Figure:
    """Softmax entropy against mutual information: a panel per method.

    As in Klein's thesis, figures 7.11 and 8.4.
    """
    rows = report.rows
    columns = min(3, len(rows))
    lines = -(-len(rows) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 3.6 * lines), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(rows) :]:
        axis.axis("off")
    for axis, row in zip(axes.flat, rows, strict=False):
        for domain, color in DOMAINS.items():
            x, y = (
                report.arrays[f"{row['method']}/{domain}/{part}"][:2000]
                for part in ("aleatoric", "epistemic")
            )
            axis.plot(
                x, y, ".", color=color, markersize=2, alpha=0.4,
                label=names(report)[domain], rasterized=True,
            )  # fmt: skip
        found = f"accuracy {row['accuracy']:.1%}, AUROC {row['auroc']:.3f}"
        axis.set_title(f"{row['method']}: {found}", fontsize=10)
        axis.set_xlabel("softmax entropy / nats")
        axis.set_ylabel("mutual information / nats")
    return figure


def draw_histograms(report: Report, methods: Sequence[str]) -> Figure:
    """Total, aleatoric and epistemic uncertainty of the three sets: a row per method.

    As in Klein's thesis, figure 8.3.
    """
    parts = {"total": "total", "aleatoric": "softmax entropy", "epistemic": "mutual information"}
    figure, axes = plt.subplots(
        len(methods), 3, figsize=(12, 2.8 * len(methods)), layout="constrained", squeeze=False,
        sharex="col",
    )  # fmt: skip
    for line, method in zip(axes, methods, strict=True):
        for axis, (part, label) in zip(line, parts.items(), strict=True):
            values = {d: report.arrays[f"{method}/{d}/{part}"] for d in DOMAINS}
            top = max(float(np.quantile(v, 0.999)) for v in values.values())
            for domain, color in DOMAINS.items():
                axis.hist(
                    values[domain], np.linspace(0, top, 50).tolist(), density=True, alpha=0.5,
                    color=color, label=names(report)[domain],
                )  # fmt: skip
            axis.set_yscale("log")
            axis.set_title(f"{method}: {label}", fontsize=10)
            axis.set_xlabel("nats")
        line[0].set_ylabel("density")
    return figure


def draw_counts(report: Report, networks: Sequence[str]) -> Figure:
    """What the number of samples does to each figure; dashed, the moment pass.

    As in Klein's thesis, figure 8.2.
    """
    figure, axes = plt.subplots(
        len(networks), 4, figsize=(15, 3.2 * len(networks)), layout="constrained", squeeze=False
    )
    figures = {row["method"]: row for row in report.rows}
    for line, method in zip(axes, networks, strict=True):
        rows = [row for row in report.extra["samples"] if row["network"] == method]
        x = [row["samples"] for row in rows]
        flat = figures[f"{method} moments"]
        for axis, part, label in zip(
            line, ("sme", "mi"), ("softmax entropy", "mutual information"), strict=False
        ):
            for domain, color in DOMAINS.items():
                name = f"{part}_{domain}"
                axis.plot(x, [row[name] for row in rows], ".-", color=color,
                          label=names(report)[domain])  # fmt: skip
                axis.axhline(flat[name], color=color, linestyle="--", linewidth=1)
            axis.set_ylabel(f"mean {label} / nats")
        for axis, name in zip(line[2:], ("auroc", "accuracy"), strict=True):
            axis.plot(x, [row[name] for row in rows], ".-", color="k")
            axis.axhline(flat[name], color="k", linestyle="--", linewidth=1)
            axis.set_ylabel({"auroc": "AUROC of mutual information"}.get(name, name))
        for axis in line:
            axis.set_xscale("log")
            axis.set_xlabel("samples")
            axis.set_title(method, fontsize=10)
    return figure


def draw_sweep(report: Report, networks: Sequence[str]) -> Figure:
    """The calibration factor: rows are networks; dashed, the sampled network."""
    panels = {
        "variance_ratio": "logit variance, moments / SVI",
        "auroc": "AUROC",
        "accuracy": "accuracy",
        "nll": "negative log-likelihood / nats",
    }
    figure, axes = plt.subplots(
        len(networks), 4, figsize=(15, 3.2 * len(networks)), layout="constrained", squeeze=False
    )
    figures = {row["method"]: row for row in report.rows}
    for line, method in zip(axes, networks, strict=True):
        rows = [row for row in report.extra["sweep"] if row["network"] == method]
        for axis, (metric, label) in zip(line, panels.items(), strict=True):
            for reading, color in (("right", "C0"), ("misread", "C3")):
                given = [row for row in rows if row["reading"] == reading]
                label_of = "softplus(raw)²" if reading == "right" else "exp(raw)"
                axis.plot(
                    [row["factor"] for row in given], [row[metric] for row in given], ".-",
                    color=color, label=f"variance {label_of}",
                )  # fmt: skip
            target = figures[f"{method} svi"].get(metric, 1.0)
            axis.axhline(target, color="k", linestyle="--", linewidth=1)
            axis.axvline(1, color="0.8", linewidth=1, zorder=0)
            axis.set_xscale("log")
            axis.set_xlabel("calibration factor")
            axis.set_ylabel(label)
            axis.set_title(method, fontsize=10)
        line[0].set_yscale("log")
    return figure


def draw_examples(report: Report, network: str) -> Figure:
    """One image of each domain: its logits' samples, their Gaussian fit, and the moment pass."""
    figure, axes = plt.subplots(
        len(DOMAINS), 3, figsize=(13, 2.6 * len(DOMAINS)), layout="constrained",
        width_ratios=(1, 3, 3),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for line, domain in zip(axes, DOMAINS, strict=True):
        line[0].imshow(report.arrays[f"example/{domain}"], cmap="gray_r")
        line[0].set_title(names(report)[domain], fontsize=10)
        line[0].axis("off")
        logits, mean, var = (
            report.arrays[f"example/{network}/{domain}/{part}"]
            for part in ("sampled", "mean", "var")
        )
        std = np.sqrt(var)
        fitted = rng.normal(logits.mean(0), logits.std(0), logits.shape)
        drawn = rng.normal(mean, std, logits.shape)
        for offset, (values, label, color) in enumerate(
            ((logits, "SVI", "C0"), (fitted, "its Gaussian", "C2"), (drawn, "moment pass", "C3"))
        ):
            _strips(line[1], values, 0.25 * (offset - 1), label, color)
            _strips(line[2], _softmax(values), 0.25 * (offset - 1), label, color)
        for axis, what in ((line[1], "logit"), (line[2], "probability")):
            axis.set_xticks(range(logits.shape[-1]))
            axis.set_ylabel(what)
    axes[-1, 1].set_xlabel("class")
    axes[-1, 2].set_xlabel("class")
    return figure


def _strips(axis: Axes, values: np.ndarray, offset: float, label: str, color: str) -> None:
    classes = np.arange(values.shape[-1]) + offset
    axis.plot(
        np.broadcast_to(classes, values.shape).ravel(), values.ravel(), ".", color=color,
        markersize=2, alpha=0.4, label=label,
    )  # fmt: skip


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)
