"""The study's pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import entropy

from experiments.dirty_mnist.evaluation import Outcome
from experiments.dirty_mnist.recipe import Settings
from jaxeff.dirty_mnist import DirtyMNIST
from jaxeff.moments import Gaussian

DOMAINS = {"clean": "C0", "ambiguous": "C1", "ood": "C3"}


def names(settings: Settings) -> dict[str, str]:
    """What the domains are called in a picture."""
    return {"clean": settings.data.source, "ambiguous": "ambiguous", "ood": settings.ood}


def draw_data(dirty: DirtyMNIST, settings: Settings, path: Path) -> Path:
    """Ambiguous digits in the order of their entropy, and how their entropies are spread."""
    figure = plt.figure(figsize=(12, 5), layout="constrained")
    left, right = np.ravel(np.asarray(figure.subfigures(1, 2, width_ratios=(1.6, 1))))
    entropies = entropy(dirty.train_probs, axis=1)
    order = np.argsort(entropies)
    rows = order[np.linspace(0, len(order) - 1, 40).astype(int)]
    axes = left.subplots(5, 8)
    for axis, i in zip(axes.flat, rows, strict=True):
        axis.imshow(dirty.train_images[i, ..., 0], cmap="gray_r")
        likely = np.argsort(dirty.train_probs[i])[::-1][:2]
        shares = ", ".join(f"{c}: {dirty.train_probs[i, c]:.0%}" for c in likely)
        axis.set_title(shares, fontsize=7)
        axis.axis("off")
    left.suptitle("ambiguous digits, least to most uncertain", fontsize=10)
    axis = right.subplots()
    bins = np.linspace(settings.data.smallest_entropy, settings.data.largest_entropy, 51)
    for probs, label in ((dirty.train_probs, "training"), (dirty.test_probs, "test")):
        axis.hist(entropy(probs, axis=1), bins, histtype="step", density=True, label=label)
    axis.set_xlabel("entropy of the ensemble / nats")
    axis.set_ylabel("density")
    axis.legend()
    return _save(figure, path)


def draw_scatter(outcomes: Mapping[str, Outcome], settings: Settings, path: Path) -> Path:
    """Softmax entropy against mutual information: a panel per method (T3262ff, T3667ff)."""
    columns = min(3, len(outcomes))
    lines = -(-len(outcomes) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(4.2 * columns, 3.6 * lines), layout="constrained", squeeze=False
    )
    for axis in axes.flat[len(outcomes) :]:
        axis.axis("off")
    for axis, (method, outcome) in zip(axes.flat, outcomes.items(), strict=False):
        for domain, color in DOMAINS.items():
            u = outcome.uncertainty[domain]
            axis.plot(
                u.aleatoric[:2000], u.epistemic[:2000], ".", color=color, markersize=2, alpha=0.4,
                label=names(settings)[domain], rasterized=True,
            )  # fmt: skip
        f = outcome.figures
        axis.set_title(
            f"{method}: accuracy {f['accuracy']:.1%}, AUROC {f['auroc']:.3f}", fontsize=10
        )
        axis.set_xlabel("softmax entropy / nats")
        axis.set_ylabel("mutual information / nats")
        axis.legend(markerscale=5, fontsize=8)
    return _save(figure, path)


def draw_histograms(outcomes: Mapping[str, Outcome], settings: Settings, path: Path) -> Path:
    """Total, aleatoric and epistemic uncertainty of the three sets: a row per method (T3667ff)."""
    parts = {"total": "total", "aleatoric": "softmax entropy", "epistemic": "mutual information"}
    figure, axes = plt.subplots(
        len(outcomes), 3, figsize=(12, 2.8 * len(outcomes)), layout="constrained", squeeze=False,
        sharex="col",
    )  # fmt: skip
    for line, (method, outcome) in zip(axes, outcomes.items(), strict=True):
        for axis, (part, label) in zip(line, parts.items(), strict=True):
            values = {d: np.asarray(getattr(outcome.uncertainty[d], part)) for d in DOMAINS}
            top = max(float(np.quantile(v, 0.999)) for v in values.values())
            for domain, color in DOMAINS.items():
                axis.hist(
                    values[domain], np.linspace(0, top, 50).tolist(), density=True, alpha=0.5,
                    color=color, label=names(settings)[domain],
                )  # fmt: skip
            axis.set_yscale("log")
            axis.set_title(f"{method}: {label}", fontsize=10)
            axis.set_xlabel("nats")
        line[0].set_ylabel("density")
    axes[0, 0].legend(fontsize=8)
    return _save(figure, path)


def draw_counts(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    passes: Mapping[str, Outcome],
    settings: Settings,
    path: Path,
) -> Path:
    """What the number of samples does to each figure; dashed, the moment pass (T3560ff)."""
    figure, axes = plt.subplots(
        len(curves), 4, figsize=(15, 3.2 * len(curves)), layout="constrained", squeeze=False
    )
    for line, (method, rows) in zip(axes, curves.items(), strict=True):
        x = [row["samples"] for row in rows]
        flat = passes[method].figures
        for axis, part, label in zip(
            line, ("sme", "mi"), ("softmax entropy", "mutual information"), strict=False
        ):
            for domain, color in DOMAINS.items():
                name = f"{part}_{domain}"
                axis.plot(x, [row[name] for row in rows], ".-", color=color,
                          label=names(settings)[domain])  # fmt: skip
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
    axes[0, 0].legend(fontsize=8)
    return _save(figure, path)


def draw_sweep(
    sweeps: Mapping[str, Sequence[Mapping[str, Any]]],
    outcomes: Mapping[str, Outcome],
    path: Path,
) -> Path:
    """The calibration factor: rows are networks; dashed, the sampled network."""
    panels = {
        "variance_ratio": "logit variance, moments / SVI",
        "auroc": "AUROC",
        "accuracy": "accuracy",
        "nll": "negative log-likelihood / nats",
    }
    figure, axes = plt.subplots(
        len(sweeps), 4, figsize=(15, 3.2 * len(sweeps)), layout="constrained", squeeze=False
    )
    for line, (method, rows) in zip(axes, sweeps.items(), strict=True):
        for axis, (metric, label) in zip(line, panels.items(), strict=True):
            for reading, color in (("right", "C0"), ("misread", "C3")):
                given = [row for row in rows if row["reading"] == reading]
                label_of = "softplus(raw)²" if reading == "right" else "exp(raw)"
                axis.plot(
                    [row["factor"] for row in given], [row[metric] for row in given], ".-",
                    color=color, label=f"variance {label_of}",
                )  # fmt: skip
            target = outcomes[method].figures.get(metric, 1.0)
            axis.axhline(target, color="k", linestyle="--", linewidth=1)
            axis.axvline(1, color="0.8", linewidth=1, zorder=0)
            axis.set_xscale("log")
            axis.set_xlabel("calibration factor")
            axis.set_ylabel(label)
            axis.set_title(method, fontsize=10)
        line[0].set_yscale("log")
    axes[0, 0].legend(fontsize=8)
    return _save(figure, path)


def draw_examples(
    images: Mapping[str, np.ndarray],
    sampled: Mapping[str, Any],
    passed: Mapping[str, Gaussian],
    settings: Settings,
    path: Path,
) -> Path:
    """One image of each domain: its logits' samples, their Gaussian fit, and the moment pass.

    Args:
        images: Of each domain one, ``[28, 28, 1]``.
        sampled: Logits of the sampled network, ``[samples, classes]``.
        passed: Logits of the moment pass, ``[classes]``.
        settings: The study's.
        path: The file.
    """
    figure, axes = plt.subplots(
        len(images), 3, figsize=(13, 2.6 * len(images)), layout="constrained",
        width_ratios=(1, 3, 3),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for line, (domain, image) in zip(axes, images.items(), strict=True):
        line[0].imshow(image[..., 0], cmap="gray_r")
        line[0].set_title(names(settings)[domain], fontsize=10)
        line[0].axis("off")
        logits = np.asarray(sampled[domain])
        mean, std = np.asarray(passed[domain].mean), np.sqrt(np.asarray(passed[domain].var))
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
    axes[0, 1].legend(fontsize=8, markerscale=3)
    return _save(figure, path)


def _strips(axis: Axes, values: np.ndarray, offset: float, label: str, color: str) -> None:
    classes = np.arange(values.shape[-1]) + offset
    axis.plot(
        np.broadcast_to(classes, values.shape).ravel(), values.ravel(), ".", color=color,
        markersize=2, alpha=0.4, label=label,
    )  # fmt: skip


def _softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
