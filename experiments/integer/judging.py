"""The figures to reach, tables and a figure of what was measured."""

import statistics

from experiments import harness as h
from experiments.harness import Report, Row

OVER_FLOAT = {"vnni": 2.5, "avx2": 1.5}
OVER_PEER = 1.0
SIZES = {8: 0.30, 2: 0.10}
PLANES_OVER_INT8 = 4.0
OVER = ("over_float32", "over_onnxruntime", "over_litert")
PER_CYCLE = {"bytes": 7.2, "bits": 76.0}
"""Products in a cycle of a Cortex-A72 to be reached, by what is multiplied."""
PEERS = {"onnxruntime": "ONNX Runtime", "litert": "LiteRT"}


def _per_cycle(report: Report) -> list[Row]:
    """Selects a row per network, bits and what is multiplied: all innermost loops together."""
    loops = [row for row in report.rows if row["table"] == "modelled"]
    return [
        {
            "place": f"{model}, {bits} bits, modelled A72, products of {of}",
            "per_cycle": sum(r["products"] for r in own)
            / sum(r["products"] / r["per_cycle"] for r in own),
            "spills": sum(r["spills"] for r in own),
            "limit": PER_CYCLE[of],
        }
        for (model, bits, of), own in sorted(h.grouped(loops, "model", "bits", "of").items())
    ]


def _median(report: Report) -> list[Row]:
    """Selects the median of the tiles' times, if there are any."""
    times = [row["over_best"] for row in report.rows if row["table"] == "tiles"]
    return [{"over_best": statistics.median(times)}] if times else []


def _place(row: Row) -> str:
    threads = f", {row['threads']} threads" if row["threads"] > 1 else ""
    return f"{row['model']}, batch {row['batch']}{threads}"


def _least(row: Row) -> float:
    return OVER_FLOAT["vnni" if row["instructions"] == "vpdpbusd" else "avx2"]


def _most(row: Row) -> float:
    return SIZES[row["bits"]]


OURS: h.Selection = h.where(table="networks", engine="tvm")


def _over(column: str, peer: str) -> h.Claim:
    return h.Claim(
        lambda row: f"{_place(row)}: our {row['arithmetic']} over {peer}'s", column,
        h.at_most(OVER_PEER), OVER_PEER, OURS, "default",
    )  # fmt: skip


CLAIMS = (
    h.Claim(
        lambda row: f"{_place(row)}: {row['arithmetic']} is JAX's bit for bit",
        lambda row: int(row["exact"]), h.equals(1), 1, OURS, when=lambda row: "exact" in row,
    ),
    h.Claim(
        lambda row: f"{_place(row)}: int8 over our float32", "over_float32", h.at_least(_least),
        _least, h.where(table="networks", engine="tvm", arithmetic="int8"), "default",
    ),
    *(_over(f"over_{peer}", name) for peer, name in PEERS.items()),
    h.Claim(
        "{model}: bundle of {bits} bits over float32's", "over_float32", h.at_most(_most), _most,
        h.where(table="sizes"),
    ),
    h.Claim(
        "{model}, {where}: results on {images} images that are JAX's bit for bit",
        "same_bits", h.equals(1), 1.0, h.where(table="agreement"),
    ),
    h.Claim(
        "{place}: products in a cycle of the loops", "per_cycle", h.at_least("limit"),
        lambda row: row["limit"], _per_cycle,
    ),
    h.Claim("{place}: spills", "spills", h.equals(0), 0, _per_cycle),
    h.Claim(
        "time of the rule's tiles over the best, median", "over_best", h.at_most(1.05), 1.05,
        _median,
    ),
    h.Claim(
        "1 x 1 bits by planes over int8", "over_int8", h.at_least(PLANES_OVER_INT8),
        PLANES_OVER_INT8, h.where(table="crossover", bits="1 x 1"),
    ),
)  # fmt: skip

CROSSOVER = h.Plot(
    "crossover",
    h.Curves(
        "product", {"over_int8": "measured", "expected_over_int8": "by number of instructions"},
        lambda report: [row for row in report.rows if "product" in row],
        style={"measured": "o", "by number of instructions": "s"}, guides=(1,),
        axes={
            "xscale": "log", "yscale": "log", "ylabel": "speed of planes over int8",
            "xlabel": "bits of activations times bits of weights",
        },
    ),
)  # fmt: skip
COLUMNS = {
    "networks": ("model", "batch", "threads", "engine", "arithmetic", "ms", *OVER),
    "sizes": ("model", "bits", "bytes", "over_float32", "arrays_over_float32"),
    "agreement": ("model", "where", "images", "same_class", "same_bits"),
    "crossover": ("bits", "ms", "gmacs", "over_int8", "expected_over_int8", "over_float32"),
    "modelled": ("model", "bits", "of", "kernel", "products", "per_cycle", "spills", "level"),
    "tiles": ("layer", "batch", "tiles", "ms", "over_best", "tile", "best"),
    "depthwise": ("image", "kernel", "stride", "arithmetic", "ms", "over_float32"),
}
