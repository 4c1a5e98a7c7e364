"""The light, the two peaks, and what bits, noise and readings do to them."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.harness import Report, Row
from experiments.photonic import light, network
from experiments.photonic.judging import of

NAMES = {"known": "digits 0 to 8", "nine": "digit 9", "other": "other images"}
METRICS = (("accuracy", "accuracy"), ("auroc_nine", "AUROC, 9"), ("auroc_other", "AUROC, other"))


def draw(report: Report) -> dict[str, Figure]:
    """The figures that there are rows for."""
    rows = report.rows
    figures: dict[str, Figure] = {}
    if of(rows, "light"):
        figures |= {"light": _light(rows), "encoding": _encoding(rows)}
    if of(rows, "digits"):
        figures["information"] = _information(rows)
        figures["training"] = _training(rows)
    if all(of(rows, part) for part in ("bits", "budget", "samples")):
        figures["limits"] = _limits(rows)
    return figures


def _light(rows: list[Row]) -> Figure:
    figure, (shapes, variances, sums) = plt.subplots(1, 3, figsize=(12, 3.6))
    middle = (light.EDGES[1:] + light.EDGES[:-1]) / 2
    for row in of(rows, "light", "distribution"):
        shapes.plot(middle, row["density"], label=f"mean {row['intensity']:.2g}")
    shapes.set(xlabel="reading", ylabel="density", xlim=(-0.3, 7.5), yscale="log", ylim=(1e-3, 10))
    found = of(rows, "light", "variance")
    x = np.array([r["intensity"] for r in found])
    (fit,) = of(rows, "light", "fit")
    law = x**2 / fit["modes"] + x / fit["photons"] + fit["electronic"] ** 2
    variances.plot(x, [r["variance"] for r in found], "o", ms=4, label="sampled")
    variances.plot(x, law, "k", lw=1, label=f"fit, M = {fit['modes']:.2f}")
    variances.plot(x, [r["saturated"] for r in found], "s", ms=3, label="saturating detector")
    variances.set(xlabel="mean intensity", ylabel="variance")
    added = of(rows, "light", "sum")
    k = [r["carriers"] for r in added]
    sums.plot(k, [r["mean"] for r in added], "o-", ms=4, label="mean")
    sums.plot(k, [5 * r["std"] for r in added], "s-", ms=4, label="5 × standard deviation")
    sums.plot(k, [5 * r["without"] for r in added], "--", color="C1", label="without electronics")
    sums.set(xlabel="carriers added", ylabel="reading", ylim=(0, None))
    return figure


def _encoding(rows: list[Row]) -> Figure:
    figure, (ranges, shapes) = plt.subplots(1, 2, figsize=(9, 3.6))
    found = of(rows, "light", "range")
    ends = [r for r in found if r["level"] == found[0]["level"]]
    x = [r["intensity"] for r in ends]
    ranges.fill_between(
        x, [r["smallest"] for r in ends], [r["largest"] for r in ends], color="0.88", label="bounds"
    )
    middle = (light.EDGES[1:] + light.EDGES[:-1]) / 2
    for i, level in enumerate(sorted({r["level"] for r in found})):
        own = [r for r in found if r["level"] == level]
        ranges.plot([r["intensity"] for r in own], [r["std"] for r in own], "o", ms=4,
                    color=f"C{i}", label=f"L = {level:g}")  # fmt: skip
        (row,) = (r for r in of(rows, "light", "encoded") if r["level"] == level)
        shapes.plot(middle, row["density"], color=f"C{i}", label=f"L = {level:g}")
    ranges.set(xlabel="intensity", ylabel="standard deviation")
    shapes.set(xlabel=f"readings of intensity {row['intensity']:.2f}", ylabel="density")
    return figure


def _information(rows: list[Row]) -> Figure:
    chosen = [r for r in of(rows, "digits") if r["seed"] == of(rows, "digits")[0]["seed"]]
    panels = [(f"light, {r['model']} model", r) for r in chosen]
    panels += [(r["method"], r) for r in of(rows, "beside") if r["method"] != "plain"]
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.3 * len(panels), 3.2), sharey=True, squeeze=False
    )
    middle = (network.EDGES[1:] + network.EDGES[:-1]) / 2
    for axis, (title, row) in zip(axes[0], panels, strict=True):
        for i, (name, label) in enumerate(NAMES.items()):
            if f"histogram_{name}" in row:
                axis.step(middle, row[f"histogram_{name}"], where="mid", color=f"C{i}", label=label)
        axis.set_title(f"{title}: AUROC {row['auroc_nine']:.3f}", fontsize=9)
        axis.set_xlabel("log₁₀ of mutual information (nats)")
    axes[0][0].set_ylabel("share of images")
    return figure


def _training(rows: list[Row]) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2))
    for axis, (name, label) in zip(axes, METRICS[:2], strict=True):
        for seed in sorted({r["seed"] for r in of(rows, "training")}):
            own = [r for r in of(rows, "training") if r["seed"] == seed]
            axis.plot(
                [r["epoch"] + 1 for r in own],
                [r[name] for r in own],
                "o-",
                ms=4,
                label=f"seed {seed}",
            )
        axis.set(xlabel="epoch", ylabel=label)
    return figure


def _limits(rows: list[Row]) -> Figure:
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4))
    parts = (("bits", "bits", "bits of weights and activations"),
             ("budget", "level", "noise level L"), ("samples", "samples", "readings"))  # fmt: skip
    for axis, (part, column, label) in zip(axes, parts, strict=True):
        own = of(rows, part)
        for i, (name, text) in enumerate(METRICS):
            if name in own[0]:
                axis.plot([r[column] for r in own], [r[name] for r in own], "o-", ms=4,
                          color=f"C{i}", label=text)  # fmt: skip
        axis.set_xlabel(label)
    axes[2].set_xscale("log")
    return figure
