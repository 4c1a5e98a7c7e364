"""What the thesis measured (its tables, in milliseconds), and how its set-up differs from ours."""

# Per model and batch: deterministic, 30 samples in Pyro, moment pass; tuned, on a Cortex-A72.
MAIN = {
    ("mlp", 10): {"deterministic": 0.186, "svi30": 734.74, "moments": 0.742},
    ("mlp", 100): {"deterministic": 1.134, "svi30": 775.32, "moments": 5.182},
    ("lenet5", 10): {"deterministic": 0.754, "svi30": 1196.42, "moments": 10.022},
    ("lenet5", 100): {"deterministic": 9.524, "svi30": 2708.16, "moments": 116.33},
}
# Per model: the deterministic net, ten heads, ten networks, untuned and tuned, on a Cortex-A72.
ENSEMBLES = {
    "sine": {"naive": (9.14, 25.93, 91.43), "tuned": (0.99, 2.93, 9.92)},
    "lenet5_valid": {"naive": (59.43, 62.41, 594.31), "tuned": (8.17, 7.94, 81.69)},
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
# Per network, batch and core: the deterministic net and the moment pass, both tuned.
ARM = {
    ("mlp", 10, "cortex-a53"): (0.933, 4.989), ("mlp", 10, "cortex-a72"): (0.186, 0.742),
    ("mlp", 10, "cortex-a76"): (0.071, 0.341), ("mlp", 100, "cortex-a53"): (6.565, 15.358),
    ("mlp", 100, "cortex-a72"): (1.134, 5.182), ("mlp", 100, "cortex-a76"): (0.230, 1.200),
    ("lenet5", 10, "cortex-a53"): (4.726, 35.159), ("lenet5", 10, "cortex-a72"): (0.754, 10.022),
    ("lenet5", 10, "cortex-a76"): (0.347, 3.897), ("lenet5", 100, "cortex-a53"): (41.697, 383.680),
    ("lenet5", 100, "cortex-a72"): (9.524, 116.330), ("lenet5", 100, "cortex-a76"): (3.131, 45.039),
}  # fmt: skip
FASTER_AT_ONE, FASTER_AT_256 = (550, 4200), (13, 112)
"""The moment pass over 30 samples in Pyro, lowest and highest, at batch 1 and at batch 256."""
# Without and with, in the order of `operators.switched`: each alone, each among the others, all.
OPTIMIZATIONS = (
    (3.672, 0.747), (3.681, 1.940), (3.681, 8.837), (3.681, 0.729), (3.681, 1.967),
    (0.754, 4.237), (0.750, 0.743), (0.759, 0.743), (1.953, 0.743), (3.042, 0.743),
    (3.760, 0.743),
)  # fmt: skip
TUNING = {"mlp": 4.668 / 1.908, "lenet5": 23.698 / 12.166}
"""Untuned over tuned moment passes at batch 10 (Klein's thesis, table 8.5)."""
SHARES = {
    "mlp": {"dense layers": 0.775, "ReLU": 0.074, "overhead": 0.151},
    "lenet5": {
        "convolutions": 0.257, "ReLU": 0.232, "max pool": 0.397, "dense layers": 0.111,
        "overhead": 0.003,
    },
}  # fmt: skip
"""Of the untuned moment pass at batch 10, on a Cortex-A72."""

DIFFERENCES = (
    "The thesis' processors are ARM Cortex-A53, A72 and A76 with four cores; this is the machine "
    "named in `versions`, confined to as many cores as there are threads. Compare ratios.",
    "The thesis draws its samples with Pyro on PyTorch, as does the engine `pyro` where it is "
    "installed, and it alone is held to the thesis' ratios. NumPyro's `Predictive` draws the "
    "weights at every call, too; as it stands it traces and compiles the model again, which is all "
    "that it takes.",
    "XLA, ONNX Runtime, NumPyro and Pyro are called from Python, as their users do; TVM by its own "
    "clock.",
    "ARM's cycles are a static model's, of untuned kernels' main loops: from below, and no time.",
    "Weights are random, their variances 1e-4 + 1e-2 w^2; no engine's speed depends on them.",
    "The thesis pools after ReLU. jaxeff pools first, which is the same function of the samples.",
    "The thesis doesn't describe the heads of its sine network; ours have ten hidden units each.",
)


def main_ratio(model: str, batch: int, method: str, over: str) -> float | None:
    """One method over another in the thesis' main table."""
    cells = MAIN.get((model, batch))
    return cells[method] / cells[over] if cells else None


def networks_over_heads(model: str) -> float:
    """Ten networks over ten heads, tuned."""
    _, heads, several = ENSEMBLES[model]["tuned"]
    return several / heads


def moments_over_heads(batch: int, core: str = "cortex-a72") -> float:
    """The moment pass of LeNet-5 over ten heads, on a Cortex-A72 or an A76."""
    first = 2 * (core == "cortex-a76")
    moments, heads = MOMENTS_AND_HEADS[batch][first : first + 2]
    return moments / heads


def moments_over_one(model: str, batch: int, core: str) -> float | None:
    """The moment pass over the deterministic network, both tuned."""
    cells = ARM.get((model, batch, core))
    return cells[1] / cells[0] if cells else None
