"""The optimizations of the dense layer's joint operator, switched on one by one.

The thesis measures them on a Cortex-A72, in a three-layer MLP at batch 10; here it is the three
layers of that MLP, one after the other. Its stochastic tuning of the optimizations has no
counterpart: tile sizes and unrolling are fixed. Beside them is the default schedule, with which
deployed networks run.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from jaxeff_export.operators import Form, Optimizations, dense_kernel, dense_module

from experiments.contests.tvm import host, kernel_meter, module_meter, together
from experiments.latency.engines import Setup
from experiments.latency.networks import place
from experiments.timing import Meter, measure_rounds, ratio, summary

LAYERS = ((784, 100), (100, 100), (100, 10))
SWITCHES = ("tiling", "reordering", "vectorization", "parallelization", "unrolling")
DEFAULT = "default schedule"
ALL = "all"
"""All optimizations but tiling, as the thesis' best."""


def choices() -> dict[str, Optimizations]:
    """Every combination that the thesis' table needs, by name."""
    on = {switch: switch != "tiling" for switch in SWITCHES}
    variants = {"none": Optimizations(), ALL: Optimizations(**on)}
    for switch in SWITCHES:
        variants[switch] = Optimizations(**{switch: True})
        variants[f"{ALL}, {switch} the other way"] = Optimizations(**on | {switch: not on[switch]})
    return variants


def measure(batch: int, setup: Setup, rounds: int) -> list[dict[str, Any]]:
    """A row per combination, all three layers together, and one of the default schedule.

    Columns: `optimizations`, and `speedup` over none of them.
    """
    layers: dict[str, list[Meter]] = {}
    for depth, columns in LAYERS:
        for name, optimizations in choices().items():
            kernel = dense_kernel(batch, depth, columns, optimizations, form=Form("raw"))
            layers.setdefault(name, []).append(_kernel_meter(kernel, setup))
        module = dense_module(batch, depth, columns, Form("raw"))
        layers.setdefault(DEFAULT, []).append(_module_meter(module, setup))
    times = measure_rounds({name: together(meters) for name, meters in layers.items()}, rounds)
    return [
        {
            **place("mlp", "moments", "tvm_untuned", batch, setup.threads),
            "optimizations": name,
            **summary(values),
            "speedup": ratio(times["none"], values),
        }
        for name, values in times.items()
    ]


def switched(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The thesis' table of the rows: each optimization off and on, the others off and on."""
    ms = {row["optimizations"]: row["ms"] for row in rows}
    lines = []
    for others in ("off", "on"):
        for switch in SWITCHES:
            without, with_it = ms["none"], ms[switch]
            if others == "on":
                without, with_it = ms[f"{ALL}, {switch} the other way"], ms[ALL]
                if switch == "tiling":  # the only one that is off in "all"
                    without, with_it = with_it, without
            line = {"optimization": switch, "others": others, "without_ms": without}
            lines.append(line | {"with_ms": with_it, "speedup": without / with_it})
    line = {"optimization": "all but tiling", "others": "", "without_ms": ms["none"]}
    return [*lines, line | {"with_ms": ms[ALL], "speedup": ms["none"] / ms[ALL]}]


def _module_meter(module: tvm.IRModule, setup: Setup) -> Meter:
    """Times a module of one operator."""
    arguments = [_random(p.ty.shape) for p in module["main"].params]
    return module_meter(module, arguments, host(setup.threads))


def _kernel_meter(kernel: tvm.tirx.PrimFunc, setup: Setup) -> Meter:
    """Times a kernel that is scheduled already."""
    target = tvm.target.Target({"fast-math-contract": True, **host(setup.threads)})
    library = tvm.compile(tvm.IRModule({"main": kernel}), target=target)
    return kernel_meter(library, "main", [_random(p.ty.shape) for p in kernel.params])


def _random(shape: Sequence[Any]) -> Any:
    values = np.random.default_rng(0).uniform(0.1, 1.0, [int(n) for n in shape])
    return tvm.runtime.tensor(values.astype(np.float32))
