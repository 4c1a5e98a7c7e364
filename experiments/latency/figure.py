"""The figures, drawn from the JSON alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.harness import Report
from experiments.latency import source
from experiments.latency.operators import switched
from experiments.latency.profiling import ORDER
from experiments.latency.tables import ENGINES, kinds

Row = Mapping[str, Any]
TITLES = {"mlp": "MLP 784-100-100-10", "lenet5": "LeNet-5", "sine": "noisy sine, MLP"}
TITLES["lenet5_valid"] = "LeNet-5, unpadded"
METHODS = {
    "deterministic": "deterministic",
    "multihead": "ten heads",
    "moments": "moment pass",
    "ensemble": "ten networks",
    "svi30": "30 samples",
}
LABELS = {"tvm": "TVM, tuned", "tvm_untuned": "TVM", "onnxruntime": "ONNX Runtime", "iree": "IREE"}
LABELS |= {"litert": "LiteRT"}
LABELS |= {"xla": "XLA", "pyro": "Pyro", "numpyro": "NumPyro", "numpyro_jit": "NumPyro, jitted"}
COLORS = dict(zip(ENGINES, ("C3", "C1", "C0", "C8", "C9", "C2", "C4", "C6", "C5"), strict=True))

KINDS = dict(zip(ORDER, ("C0", "C2", "C1", "C4", "lightgray"), strict=True))


def draw(report: Report) -> dict[str, Figure]:
    """Draws every table there are rows for."""
    plots = {"main": _main, "curve": _curve, "ensembles": _ensembles, "profile": _profile}
    plots |= {"forms": _forms, "optimizations": _optimizations}
    rows = {name: [row for row in report.rows if row["table"] == name] for name in plots}
    return {name: plot(rows[name]) for name, plot in plots.items() if rows[name]}


def _main(rows: Sequence[Row]) -> Figure:
    """Bars by method and engine: a panel per network and batch, for the fewest threads."""
    threads = min(row["threads"] for row in rows)
    rows = [row for row in rows if row["threads"] == threads]
    models, batches = _values(rows, "model"), sorted(_values(rows, "batch"))
    shape = (len(models), len(batches))
    size = (1 + 5.2 * len(batches), 3.6 * len(models) + 0.4)
    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False, layout="constrained")
    for i, model in enumerate(models):
        for j, batch in enumerate(batches):
            axis = axes[i, j]
            _bars(axis, [r for r in rows if (r["model"], r["batch"]) == (model, batch)])
            axis.set_title(f"{TITLES[model]}, batch {batch}", fontsize=10)
        axes[i, 0].set_ylabel("ms per batch")
    figure.suptitle(f"Latency with {threads} thread{'s' if threads > 1 else ''}", fontsize=11)
    return figure


def _bars(axis: Axes, rows: Sequence[Row]) -> None:
    engines = [engine for engine in ENGINES if any(row["engine"] == engine for row in rows)]
    methods = [method for method in METHODS if any(row["method"] == method for row in rows)]
    place = 0.0
    ticks = []
    for method in methods:
        own = {row["engine"]: row for row in rows if row["method"] == method}
        there = [engine for engine in engines if engine in own]
        for k, engine in enumerate(there):
            bar = axis.bar(place + k, own[engine]["ms"], 0.9, color=COLORS[engine])
            bar.set_label(LABELS[engine])
            axis.bar_label(bar, fmt=_short, fontsize=5.5, padding=1)
        ticks.append(place + (len(there) - 1) / 2)
        place += len(there) + 1
    axis.set_yscale("log")
    axis.margins(x=0.02, y=0.1)
    axis.set_xticks(ticks, [METHODS[method] for method in methods], fontsize=8)


def _curve(rows: Sequence[Row]) -> Figure:
    """Milliseconds per image, and speed-up of the moment pass over sampling, by batch."""
    models = _values(rows, "model")
    figure, axes = plt.subplots(
        2, len(models), figsize=(5.2 * len(models), 7), squeeze=False, layout="constrained"
    )
    for j, model in enumerate(models):
        own = [row for row in rows if row["model"] == model]
        for method, engine in sorted({(row["method"], row["engine"]) for row in own}):
            if engine not in ENGINES:
                continue  # the slower forms of the same
            line = [row for row in own if (row["method"], row["engine"]) == (method, engine)]
            line.sort(key=lambda row: row["batch"])
            batches = [row["batch"] for row in line]
            style = {"color": COLORS[engine], "marker": "o" if method == "moments" else "s"}
            style["linestyle"] = "-" if method == "moments" else "--"
            label = f"{METHODS[method]}, {LABELS[engine]}"
            per_image = [row["ms"] / row["batch"] for row in line]
            axes[0, j].plot(batches, per_image, **style, label=label)
            if method == "svi30":
                faster = [row["over_moments"] for row in line]
                axes[1, j].plot(batches, faster, **style, label=label)
        for batch, (low, high) in {1: source.FASTER_AT_ONE, 256: source.FASTER_AT_256}.items():
            span = axes[1, j].vlines(batch, low, high, color="gray", linewidth=5, alpha=0.4)
            span.set_label("the source's range, Pyro" if batch == 1 else None)
        axes[0, j].set_title(TITLES[model], fontsize=10)
        for axis in axes[:, j]:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(sorted(_values(own, "batch")), sorted(_values(own, "batch")))
            axis.grid(alpha=0.3)
        axes[1, j].set_xlabel("batch")
    axes[0, 0].set_ylabel("ms per image")
    axes[1, 0].set_ylabel("30 samples over our moment pass")
    return figure


def _ensembles(rows: Sequence[Row]) -> Figure:
    """Ten heads and ten networks beside one, and the moment pass beside ten heads."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    rows = [row for row in rows if row["engine"] in ENGINES]
    places, labels = [], []
    methods = source.ENSEMBLE_METHODS[1:]
    for i, model in enumerate(("sine", "lenet5_valid")):
        most = max((row["batch"] for row in rows if row["model"] == model), default=None)
        own = [row for row in rows if row["model"] == model and row["batch"] == most]
        bars = {
            f"{LABELS[e]}": {r["method"]: r["over_deterministic"] for r in own if r["engine"] == e}
            for e in ("tvm", "tvm_untuned", "xla")
            if any(r["engine"] == e for r in own)
        }
        theirs = source.ENSEMBLES[model, "A72"]["tuned"]
        bars["source, A72, tuned"] = {m: theirs[k + 1] / theirs[0] for k, m in enumerate(methods)}
        colors = {LABELS[e]: COLORS[e] for e in ENGINES} | {"source, A72, tuned": "gray"}
        for j, method in enumerate(methods):
            start = 10 * i + 5 * j
            for k, (label, values) in enumerate(bars.items()):
                bar = left.bar(start + k, values[method], 0.9, color=colors[label])
                bar.set_label(label)
                left.bar_label(bar, fmt="%.3g", fontsize=7)
            places.append(start + (len(bars) - 1) / 2)
            labels.append(f"{TITLES[model]}\nbatch {most}\n{METHODS[method]}")
    left.set_xticks(places, labels, fontsize=7)
    left.set_ylabel("times one deterministic network")
    left.margins(y=0.25)
    for engine in ("tvm", "tvm_untuned", "xla"):
        place = (engine, "lenet5_valid")
        ratios = _ratios([row for row in rows if (row["engine"], row["model"]) == place])
        if ratios:
            right.plot(*zip(*ratios, strict=True), "o-", color=COLORS[engine], label=LABELS[engine])
    for k, processor in enumerate(("A72", "A76")):
        known = source.MOMENTS_AND_HEADS
        quotients = [ms[2 * k] / ms[2 * k + 1] for ms in known.values()]
        style = {"color": "gray", "label": f"source, {processor}"}
        right.plot(list(known), quotients, ("s--", "^:")[k], **style)
    right.set_xscale("log", base=2)
    right.set_xticks(list(source.MOMENTS_AND_HEADS), list(source.MOMENTS_AND_HEADS))
    right.set_yscale("log")
    right.set_yticks((1, 2, 5, 10, 20), ("1", "2", "5", "10", "20"))
    right.set_xlabel("batch")
    right.set_ylabel("moment pass over ten heads, LeNet-5")
    right.grid(alpha=0.3)
    return figure


def _ratios(rows: Sequence[Row]) -> list[tuple[int, float]]:
    by = {(row["batch"], row["method"]): row["ms"] for row in rows}
    return sorted(
        (batch, ms / by[batch, "multihead"])
        for (batch, method), ms in by.items()
        if method == "moments" and (batch, "multihead") in by
    )


def _profile(rows: Sequence[Row]) -> Figure:
    """Shares of the moment pass by kind of operator, ours beside the source's."""
    models = _values(rows, "model")
    shape = (1, len(models))
    figure, axes = plt.subplots(*shape, figsize=(11, 2.6), squeeze=False, layout="constrained")
    for axis, model in zip(axes[0], models, strict=True):
        bars = {"source, A72, untuned": source.SHARES[model]}
        for engine in (e for e in ENGINES if any(row["engine"] == e for row in rows)):
            own = [row for row in rows if (row["model"], row["engine"]) == (model, engine)]
            bars[f"{LABELS[engine]}, here"] = kinds(own)
        for place, shares in enumerate(bars.values()):
            left = 0.0
            for kind in (k for k in ORDER if k in shares):
                share = shares[kind]
                bar = axis.barh(place, share, left=left, color=KINDS[kind], label=kind)
                if share > 0.04:
                    axis.bar_label(bar, [f"{share:.0%}"], label_type="center", fontsize=8)
                left += share
        axis.set_yticks(range(len(bars)), list(bars), fontsize=8)
        axis.set_xlim(0, 1)
        axis.set_title(f"{TITLES[model]}, batch {rows[0]['batch']}", fontsize=10)
        axis.set_xlabel("share of the moment pass")
    return figure


def _forms(rows: Sequence[Row]) -> Figure:
    """The forms of the dense operator, relative to the joint one with second moments."""
    figure, axis = plt.subplots(figsize=(7.5, 3.4), layout="constrained")
    layers, forms = _values(rows, "layer"), _values(rows, "form")
    for k, form in enumerate(forms):
        values = [row["over_joint"] for row in rows if row["form"] == form]
        places = np.arange(len(layers)) + 0.2 * (k - (len(forms) - 1) / 2)
        bar = axis.bar(places, values, 0.19, label=form, color=f"C{k}")
        axis.bar_label(bar, fmt="%.2f", fontsize=7)
    axis.set_xticks(range(len(layers)), layers)
    axis.set_ylabel("time over joint, second moments")
    axis.set_title(f"forms of the dense operator, batch {rows[0]['batch']}", fontsize=10)
    axis.margins(y=0.12)
    return figure


def _optimizations(rows: Sequence[Row]) -> Figure:
    """What each optimization of the dense operator brings, ours beside the source's."""
    figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
    lines = switched(rows)
    names = [f"{line['optimization']}\n{_others(line['others'])}" for line in lines]
    places = np.arange(len(lines))
    theirs = [without / with_it for without, with_it in source.OPTIMIZATIONS]
    threads = rows[0]["threads"]
    here = f"here, {threads} thread{'s' if threads > 1 else ''}"
    for k, (label, values) in enumerate(
        ((here, [line["speedup"] for line in lines]), ("source, A72, 4 threads", theirs))
    ):
        color = ("C1", "gray")[k]
        bar = axis.bar(places + 0.4 * (k - 0.5), values, 0.38, label=label, color=color)
        axis.bar_label(bar, fmt="%.2g", fontsize=7)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_yscale("log")
    axis.margins(y=0.12)
    axis.set_xticks(places, names, fontsize=7)
    axis.set_ylabel("times faster with it")
    axis.set_title(f"optimizations of the dense operator, batch {rows[0]['batch']}", fontsize=10)
    return figure


def _others(others: str) -> str:
    return f"others {others}" if others else "on"


def _values(rows: Sequence[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row[key] for row in rows))


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"
