"""Cycles of ARM processors by a static model: the thesis', of which none is at hand.

The model knows the kernels' main loops and their arrays' way through the caches; branches, calls
and what is outside of the loops it doesn't. It bounds times from below, so that only ratios of the
same processor are compared with the thesis'. Nothing is tuned: a model of one loop can't tell what
tuning gains.
"""

from collections.abc import Collection
from typing import Any, Literal, get_args

from jaxeff_export import deploy, resolve_target
from jaxeff_export.bundle import LoopModel
from jaxeff_export.targets import ToolchainError, find_linker, find_modeller

from experiments.contests.tvm import modelled_cycles
from experiments.latency.networks import Subject

Core = Literal["cortex-a53", "cortex-a72", "cortex-a76"]
CORES: tuple[Core, ...] = get_args(Core)


def missing() -> str:
    """Says what the model needs and isn't installed; empty where all is there."""
    try:
        find_linker(resolve_target(CORES[0]))
        find_modeller("llvm-mca", "llvm")
    except ToolchainError as error:
        return str(error)
    return ""


def measure(net: Subject, methods: Collection[str], cores: Collection[str]) -> list[dict[str, Any]]:
    """Models every method on every core.

    Returns:
        One row per method and core, of one thread: `cycles` of a prediction and `instructions` of
        the main loops, and both over the deterministic network's.
    """
    rows = []
    for core in cores:
        known = {}
        for method in methods:
            g, params = net.program(method)
            bundle = deploy(g, (params, net.x), target=core)
            kernels = bundle.manifest.kernels
            # Of main loops, as are the cycles: turns of a loop, and calls of its kernel.
            instructions = sum(
                (loop.turns or 0.0) * loop.instructions * int(kernels[loop.name].get("calls", 1))
                for loop in bundle.model()
                if isinstance(loop, LoopModel) and loop.name in kernels
            )
            known[method] = modelled_cycles(bundle), instructions
        for method, (cycles, instructions) in known.items():
            row = {**net.place(method, core, 1), "cycles": cycles, "instructions": instructions}
            rows.append(row | {
                f"{column}_over_{base}": own / of
                for base in ("deterministic", "multihead") if base in known
                for column, own, of in zip(
                    ("cycles", "instructions"), (cycles, instructions), known[base], strict=True
                )
            })  # fmt: skip
    return rows
