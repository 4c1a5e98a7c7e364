"""What the source measured (its tables, in milliseconds), and how its set-up differs from ours."""

import itertools

# Per model, batch and processor: deterministic untuned and tuned; 30 samples in Pyro; the moment
# pass untuned and tuned.
_PLACES = itertools.product(("mlp", "lenet5"), (10, 100), ("A53", "A72", "A76"))
_CELLS: tuple[tuple[float | None, ...], ...] = (
    (14.02, 4.59, 1.64, 137.8, 45.81, 16.3, 21.14, 6.89, 3.16, 209.28, 70.08, 31.51),
    (0.933, 0.186, 0.071, 6.565, 1.134, 0.23, 4.726, 0.754, 0.347, 41.697, 9.524, 3.131),
    (None, 734.74, 307.52, None, 775.32, 306.89, None, 1196.42, 801.4, None, 2708.16, 2488.73),
    (15.26, 3.75, 1.89, 147.61, 36.33, 18.6, 76.09, 21.23, 9.63, 801.33, 240.94, 119.76),
    (4.989, 0.742, 0.341, 15.358, 5.182, 1.2, 35.159, 10.022, 3.897, 383.68, 116.33, 45.039),
)  # fmt: skip
MAIN = dict(zip(_PLACES, zip(*_CELLS, strict=True), strict=True))
COLUMNS = (
    ("deterministic", "tvm_untuned"),
    ("deterministic", "tvm"),
    ("svi30", "pyro"),
    ("moments", "tvm_untuned"),
    ("moments", "tvm"),
)
# Per model and processor: the deterministic net, ten heads, ten networks, untuned and tuned.
ENSEMBLES = {
    ("sine", "A72"): {"naive": (9.14, 25.93, 91.43), "tuned": (0.99, 2.93, 9.92)},
    ("sine", "A76"): {"naive": (4.05, 11.31, 40.53), "tuned": (0.46, 1.22, 4.58)},
    ("lenet5_valid", "A72"): {"naive": (59.43, 62.41, 594.31), "tuned": (8.17, 7.94, 81.69)},
    ("lenet5_valid", "A76"): {"naive": (26.50, 27.88, 265.04), "tuned": (2.55, 2.96, 25.49)},
}
HEADS_FASTER = {"sine": 3.4, "lenet5_valid": 8.1}
"""How many times faster a network with ten heads is than ten (Klein's thesis, section 9.3)."""
ENSEMBLE_METHODS = ("deterministic", "multihead", "ensemble")
# Per batch: the moment pass and ten heads of LeNet-5 on a Cortex-A72 and on an A76, both tuned.
MOMENTS_AND_HEADS = {
    1: (1.23, 0.51, 0.50, 0.27),
    8: (7.77, 0.91, 3.03, 0.41),
    16: (15.58, 1.32, 6.33, 0.46),
    32: (32.91, 2.71, 13.60, 0.63),
    64: (70.82, 4.89, 27.46, 1.11),
    128: (150.72, 8.00, 61.92, 2.93),
}
FASTER_AT_ONE, FASTER_AT_256 = (550, 4200), (13, 112)
"""The moment pass over 30 samples in Pyro, lowest and highest, at batch 1 and at batch 256."""
# Without and with, in the order of `operators.switched`: each alone, each among the others, all.
OPTIMIZATIONS = (
    (3.672, 0.747), (3.681, 1.940), (3.681, 8.837), (3.681, 0.729), (3.681, 1.967),
    (0.754, 4.237), (0.750, 0.743), (0.759, 0.743), (1.953, 0.743), (3.042, 0.743),
    (3.760, 0.743),
)  # fmt: skip
# Max pools and entire LeNet-5, batch 10, on a Cortex-A72: generic and vectorised, nothing tuned and
# all but the pools.
POOLING = {
    ("generic", "max pools", "tvm_untuned"): 12.09,
    ("generic", "network", "tvm_untuned"): 29.13,
    ("generic", "network", "tvm"): 17.82,
    ("by rows", "max pools", "tvm_untuned"): 3.54,
    ("by rows", "network", "tvm_untuned"): 21.10,
    ("by rows", "network", "tvm"): 9.79,
}
SHARES = {
    "mlp": {"dense layers": 0.775, "ReLU": 0.074, "overhead": 0.151},
    "lenet5": {
        "convolutions": 0.257, "ReLU": 0.232, "max pool": 0.397, "dense layers": 0.111,
        "overhead": 0.003,
    },
}  # fmt: skip
"""Of the untuned moment pass at batch 10, on a Cortex-A72."""

DIFFERENCES = (
    "The source's processors are ARM Cortex-A53, A72 and A76 with four cores; this is the machine "
    "named in `versions`, confined to as many cores as there are threads. Compare ratios.",
    "XLA, ONNX Runtime, IREE, Pyro and NumPyro are called from Python, as their users do; TVM by "
    "its own clock. The rows `dispatch` of the model `machine` say what that makes.",
    "Weights are random, their variances 1e-4 + 1e-2 w^2; no engine's speed depends on them.",
    "The source pools after ReLU. jaxeff pools first, which is the same function of the samples.",
    "The source doesn't describe the heads of its sine network; ours have ten hidden units each.",
)


def main_ms(model: str, method: str, engine: str, batch: int, processor: str) -> float | None:
    """A cell of the source's main table."""
    cells = MAIN.get((model, batch, processor))
    if cells is None or (method, engine) not in COLUMNS:
        return None
    return cells[COLUMNS.index((method, engine))]


def main_ratio(model: str, batch: int, over: str, method: str, engine: str) -> float | None:
    """Tuned moment pass or Pyro over another tuned method, on the Cortex-A72.

    Args:
        model: The network.
        batch: Inputs per prediction.
        over: The method in the denominator.
        method: That in the numerator.
        engine: Its engine.
    """
    above = main_ms(model, method, engine, batch, "A72")
    below = main_ms(model, over, "tvm", batch, "A72")
    return above / below if above and below else None
