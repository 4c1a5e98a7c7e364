"""The figures to reach, tables and a figure of what was measured."""

from experiments import harness as h
from experiments.harness import Row

OVER_FLOAT = {"vnni": 2.5, "avx2": 1.5}
OVER_PEER = 1.0
SIZES = {8: 0.30, 2: 0.10}
PLANES_OVER_INT8 = 4.0
OVER = ("over_float32", "over_onnxruntime")


def _place(row: Row) -> str:
    threads = f", {row['threads']} threads" if row["threads"] > 1 else ""
    return f"{row['model']}, batch {row['batch']}{threads}"


def _least(row: Row) -> float:
    return OVER_FLOAT["vnni" if row["instructions"] == "vpdpbusd" else "avx2"]


def _most(row: Row) -> float:
    return SIZES[row["bits"]]


OURS: h.Selection = h.where(table="networks", engine="tvm")


CLAIMS = (
    h.Claim(
        lambda row: f"{_place(row)}: {row['arithmetic']} is JAX's bit for bit",
        lambda row: int(row["exact"]), h.equals(1), 1, OURS, when=lambda row: "exact" in row,
    ),
    h.Claim(
        lambda row: f"{_place(row)}: int8 over our float32", "over_float32", h.at_least(_least),
        _least, h.where(table="networks", engine="tvm", arithmetic="int8"), "default",
    ),
    h.Claim(
        lambda row: f"{_place(row)}: our {row['arithmetic']} over ONNX Runtime's",
        "over_onnxruntime", h.at_most(OVER_PEER), OVER_PEER, OURS, "default",
    ),
    h.Claim(
        "{model}: bundle of {bits} bits over float32's", "over_float32", h.at_most(_most), _most,
        h.where(table="sizes"),
    ),
    h.Claim(
        "{model}, {where}: results on {images} images that are JAX's bit for bit",
        "same_bits", h.equals(1), 1.0, h.where(table="agreement"),
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
}
