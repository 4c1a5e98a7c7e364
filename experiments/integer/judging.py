"""The figures to reach, tables and a figure of what was measured."""

import statistics
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from experiments.harness import Report, Table

OVER_FLOAT = {"vnni": 2.5, "avx2": 1.5}
OVER_PEER = 1.0
SIZES = {8: 0.30, 2: 0.10}
PLANES_OVER_INT8 = 4.0
OVER = ("over_float32", "over_onnxruntime", "over_litert")
PER_CYCLE = {"bytes": 7.2, "bits": 76.0}
"""Products in a cycle of a Cortex-A72 to be reached, by what is multiplied."""


def judge(report: Report) -> None:
    """Holds rows against the figures to reach."""
    rows = report.rows
    for row in rows:
        if row["table"] == "networks" and row["engine"] == "tvm":
            _judge_network(report, row)
        if row["table"] == "sizes":
            words = f"{row['model']}: bundle of {row['bits']} bits over float32's"
            limit, ratio_ = SIZES[row["bits"]], row["over_float32"]
            report.check(words, limit, ratio_, ratio_ <= limit)
        if row["table"] == "agreement":
            where = f"{row['model']}, {row['where']}"
            words = f"{where}: results on {row['images']} images that are JAX's bit for bit"
            report.check(words, 1.0, row["same_bits"], row["same_bits"] == 1)
    modelled = [row for row in rows if row["table"] == "modelled"]
    for model, bits, of in sorted({(r["model"], r["bits"], r["of"]) for r in modelled}):
        mine = [r for r in modelled if (r["model"], r["bits"], r["of"]) == (model, bits, of)]
        limit, whole = PER_CYCLE[of], sum(r["products"] for r in mine)
        mean = whole / sum(r["products"] / r["per_cycle"] for r in mine)
        where = f"{model}, {bits} bits, modelled A72, products of {of}"
        report.check(f"{where}: products in a cycle of the loops", limit, mean, mean >= limit)
        spills = sum(r["spills"] for r in mine)
        report.check(f"{where}: spills", 0, spills, spills == 0)
    worst = [row["over_best"] for row in rows if row["table"] == "tiles"]
    if worst:
        mean = statistics.median(worst)
        report.check("time of the rule's tiles over the best, median", 1.05, mean, mean <= 1.05)
    first = [row for row in rows if row["table"] == "crossover" and row["bits"] == "1 x 1"]
    for row in first:
        faster, target = row["over_int8"], PLANES_OVER_INT8
        report.check("1 x 1 bits by planes over int8", target, faster, faster >= target)


def _judge_network(report: Report, row: Any) -> None:
    where = f"{row['model']}, batch {row['batch']}"
    if row["threads"] > 1:
        where += f", {row['threads']} threads"
    if "exact" in row:
        words = f"{where}: {row['arithmetic']} is JAX's bit for bit"
        report.check(words, 1, int(row["exact"]), row["exact"])
    if row["arithmetic"] == "int8":
        least = OVER_FLOAT["vnni" if row["instructions"] == "vpdpbusd" else "avx2"]
        words, faster = f"{where}: int8 over our float32", row["over_float32"]
        report.check(words, least, faster, faster >= least, needs="default")
    for peer, name in (("onnxruntime", "ONNX Runtime"), ("litert", "LiteRT")):
        if f"over_{peer}" in row:
            words = f"{where}: our {row['arithmetic']} over {name}'s"
            over = row[f"over_{peer}"]
            report.check(words, OVER_PEER, over, over <= OVER_PEER, needs="default")


def draw(report: Report) -> dict[str, Figure]:
    """Speed over the product of the widths."""
    rows = [row for row in report.rows if row["table"] == "crossover" and "product" in row]
    if not rows:
        return {}
    figure, axis = plt.subplots()
    products = [row["product"] for row in rows]
    axis.loglog(products, [row["over_int8"] for row in rows], "o", label="measured")
    axis.loglog(
        products,
        [row["expected_over_int8"] for row in rows],
        "s",
        mfc="none",
        label="by number of instructions",
    )
    axis.axhline(1, color="gray", label="int8")
    axis.set_xlabel("bits of activations times bits of weights")
    axis.set_ylabel("speed of planes over int8")
    return {"crossover": figure}


def tables(report: Report) -> list[Table]:
    """A table for each kind of row."""
    return report.tables({
        "networks": ("model", "batch", "threads", "engine", "arithmetic", "ms", *OVER),
        "sizes": ("model", "bits", "bytes", "over_float32", "arrays_over_float32"),
        "agreement": ("model", "where", "images", "same_class", "same_bits"),
        "crossover": ("bits", "ms", "gmacs", "over_int8", "expected_over_int8", "over_float32"),
        "modelled": ("model", "bits", "of", "kernel", "products", "per_cycle", "spills", "level"),
        "tiles": ("layer", "batch", "tiles", "ms", "over_best", "tile", "best"),
        "depthwise": ("image", "kernel", "stride", "arithmetic", "ms", "over_float32"),
    })  # fmt: skip
