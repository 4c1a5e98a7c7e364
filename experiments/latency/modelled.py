"""The static model of a bundle's kernels beside their measured times, on the processor at hand.

`Bundle.model` is for cores that aren't at hand. Where both can be had it is held to the profile:
over all kernels of five networks, how well it orders them, and how far it is off once the clock's
speed is fitted. It is a bound from above, so it is never called a time, and is held to the least of
the rounds: what disturbs a kernel only adds to it. A round is cut into slices that are shorter than
those in which a busy machine shares its cores. What calling a kernel takes, that of one addition in
the same rounds, is no part of the model and is subtracted.
"""

import math
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import jaxeff_export
from jaxeff_export import Bundle
from jaxeff_export.bundle.machine_model import SIMILAR_CORES
from jaxeff_export.targets import ToolchainError
from scipy.stats import spearmanr

import jaxeff
from experiments.contests.tvm import host
from experiments.integer.subjects import subject
from experiments.latency.engines import Setup
from experiments.latency.machine import peak_meter
from experiments.latency.networks import place
from experiments.latency.profiling import kind_of
from experiments.transforms.cost import posterior

Row = Mapping[str, Any]
METHODS = {
    "mlp": ("deterministic", "moments", "int8"),
    "lenet5": ("deterministic", "moments", "int8"),
    "resnet8": ("deterministic", "moments", "int8"),
    "resnet18": ("deterministic", "int8"),
    "transformer": ("deterministic", "moments", "int8"),
}
STAND_INS = ("sapphirerapids", "skylake-avx512", "haswell")
"""Cores to model where llvm-mca is older than the processor, the likest first."""
MILLISECONDS, SLICES = 1, 10
"""Of calls of the network in a slice, and slices of a round."""
KINDS = ("convolutions", "dense layers")
LOOP = ("products", "per_cycle", "width", "spills", "loads_per_multiply", "bytes", "level")
"""Of a kernel's innermost loop, as the model has them."""
SHORT_US = 0.2
"""Kernels below it are mostly their call."""


def possible() -> bool:
    """Whether the programs that model kernels are here."""
    return all(shutil.which(name) for name in ("llvm-mca", "objdump"))


def measure(
    model: str, batch: int, methods: Collection[str], setup: Setup, rounds: int
) -> list[dict[str, Any]]:
    """Rows per kernel, with its time and what the model says of its innermost loop.

    `ms` is the median of a call, `least_ms` the least of the kernel without what calling takes.
    """
    rows = []
    for method in methods:
        bundle = deployed(model, batch, method, setup.threads)
        core, loops = _modelled(bundle)
        times, call, fastest = _times(bundle, rounds)
        for loop in loops:
            name = loop.name
            if name not in times or loop.total is None or loop.turns is None:
                continue
            products = bundle.manifest.kernels[name]["products"]
            rows.append(
                {
                    **place(model, method, "tvm_untuned", batch, setup.threads),
                    "operator": name, "kind": kind_of(name), "ms": median(times[name]),
                    "least_ms": (least := max(min(times[name]) - call, 1e-6)),
                    "GMAC/s": products / least / 1e6, "of_peak": products / least / 1e6 / fastest,
                    "core": core, "cycles": loop.total,
                    **{column: getattr(loop, column) for column in LOOP},
                    "in_widest": dict(loop.widths).get(loop.width, 0),
                }
            )  # fmt: skip
    return rows


def deployed(model: str, batch: int, method: str, threads: int) -> Bundle:
    """A network of `METHODS`, compiled for the processor at hand."""
    net = subject(model, batch)
    g: Callable[..., Any] = net.f
    params = net.params
    if method == "moments":
        g, params = jaxeff.moments(net.f), jax.jit(posterior)(params)
    elif method == "int8":
        g, params = net.integer(8)
    return jaxeff_export.deploy(g, (params, net.x), target=host(threads))


def agreement(rows: Iterable[Row]) -> tuple[float, float, float]:
    """How the model and the times of `measure` agree.

    Returns:
        Spearman's correlation of cycles and least times; the median of
        |cycles / (clock * time) - 1|, the clock being the one that makes the median of
        cycles / time one; that clock, in GHz.
    """
    long = [row for row in rows if 1e3 * row["least_ms"] > SHORT_US]
    cycles, times = [r["cycles"] for r in long], [r["least_ms"] for r in long]
    clock = median(c / t for c, t in zip(cycles, times, strict=True))
    errors = [abs(c / (clock * t) - 1) for c, t in zip(cycles, times, strict=True)]
    return float(spearmanr(cycles, times).statistic), median(errors), clock / 1e6


def shares(rows: Iterable[Row]) -> dict[tuple[str, str, str], float]:
    """Of the core's peak, by network, method and kind: all layers of a kind together.

    Columns that weights are padded by count as work.
    """
    work: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row["method"] != "int8" and row["kind"] in KINDS and row["GMAC/s"]:
            sums = work.setdefault((row["model"], row["method"], row["kind"]), [0.0, 0.0])
            sums[0] += row["least_ms"] * row["GMAC/s"]
            sums[1] += row["least_ms"] * row["GMAC/s"] / row["of_peak"]
    return {place: done / could for place, (done, could) in work.items()}


def narrow(rows: Iterable[Row]) -> list[str]:
    """The kernels of float networks whose loop has no vector as wide as the widest there is."""
    floats = [row for row in rows if row["method"] != "int8"]
    widest = max((row["width"] for row in floats), default=0)
    return [f"{r['model']}/{r['operator']}" for r in floats if r["width"] < widest]


def _modelled(bundle: Bundle) -> tuple[str, Sequence[Any]]:
    own = str(bundle.manifest.target["mcpu"])
    for like in (None, *STAND_INS):
        try:
            return like or SIMILAR_CORES.get(own, own), bundle.model(own, like)
        except ToolchainError:
            if like == STAND_INS[-1]:
                raise
    raise AssertionError


def _times(bundle: Bundle, rounds: int) -> tuple[dict[str, list[float]], float, float]:
    """Milliseconds of a call of each kernel in each slice, of calling one at all, and the peak.

    The peak is in GMAC/s, the best one.
    """
    whole = bundle.benchmark("local", 1, 3).median_ms
    number = max(1, int(MILLISECONDS / whole))
    slices = max(1, SLICES * MILLISECONDS // math.ceil(number * whole))
    idle = jaxeff_export.deploy(jnp.add, (jnp.ones(1), jnp.ones(1)), target=bundle.manifest.target)
    meter, products = peak_meter()
    found: dict[str, list[float]] = {}
    calls, peaks = [], []
    for _ in range(rounds * slices):
        peaks.append(products / meter(10) / 1e9)
        calls += [operator.ms for operator in idle.profile("local", 1000, 1)]
        for operator in bundle.profile("local", number, 1):
            found.setdefault(operator.name, []).append(operator.ms / operator.calls)
    return found, min(calls), max(peaks)
