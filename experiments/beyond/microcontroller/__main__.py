"""Instructions and memory of the four networks of MLPerf Tiny as C libraries in int8.

    python -m experiments.beyond.microcontroller

Instructions of a call are counted by a plugin of qemu, so they are exact and the same in every run;
they are no time. They are held against Arm's CMSIS-NN (commit 99f736a, gcc 12.2 at -O3, its
functions called one after the other on the same networks), counted in the same way. Only its
ratios to an earlier state of this library were kept, to two digits, so its counts are right
within 1 %.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import jax
import jaxeff_export
import numpy as np
from jaxeff_export import ToolchainError, resolve_target
from jaxeff_export.clib import CLibrary, ExampleProgram, count_instructions, model_calls
from jaxeff_export.targets import find_c_toolchain

from experiments import harness as h
from experiments.beyond.microcontroller.moments import moment_rows
from experiments.beyond.microcontroller.networks import BITS, in_codes
from experiments.harness import Row, Run

SOURCE = {
    "keywords": (8_000_000, 16_300),
    "images": (29_960_000, 51_500),
    "anomalies": (574_600, 300),
    "wake_words": (24_740_000, 56_300),
}
"""CMSIS-NN's instructions, and the bytes of its arena."""
GOALS = {
    ("keywords", "cortex-m7"): 0.50,
    ("keywords", "cortex-m4"): 0.55,
    ("images", "cortex-m7"): 0.48,
    ("images", "cortex-m4"): 0.52,
    ("anomalies", "cortex-m7"): 0.60,
    ("anomalies", "cortex-m4"): 0.60,
    ("wake_words", "cortex-m7"): 0.50,
    ("wake_words", "cortex-m4"): 0.50,
}
_NAMES = tuple(SOURCE)
PUBLISHED = {
    (name, core): {"X-CUBE-AI": x_cube, "Plumerai": plumerai}
    for core, of_x_cube, of_plumerai in (
        ("cortex-m4", (8.7e6, 26.6e6, 0.91e6, 26.5e6), (8.6e6, 20.8e6, 0.67e6, 25.0e6)),
        ("cortex-m7", (4.6e6, 15.4e6, 0.51e6, 14.1e6), (4.1e6, 14.0e6, 0.50e6, 12.3e6)),
    )
    for name, x_cube, plumerai in zip(_NAMES, of_x_cube, of_plumerai, strict=True)
}
"""Cycles on boards: latencies published with MLPerf Tiny times the clock."""
MEMORY = {"keywords": 10_000, "images": 38_000, "wake_words": 60_000}


@dataclass(frozen=True)
class Settings:
    """What is counted.

    Attributes:
        networks: The networks.
        cores: The processors.
        in_few_bits: Networks that are counted with weights of four and two bits too, on the first
            of the cores.
        others: Processors that the first network is counted on.
        moments: Networks whose moment passes are counted too, on the first of the cores.
    """

    networks: tuple[str, ...] = tuple(SOURCE)
    cores: tuple[str, ...] = ("cortex-m7", "cortex-m4")
    in_few_bits: tuple[str, ...] = ("keywords", "images", "anomalies")
    others: tuple[str, ...] = (
        "cortex-m0plus", "cortex-m3", "cortex-m33", "cortex-m55", "cortex-m85", "riscv32",
    )  # fmt: skip
    moments: tuple[str, ...] = ("keywords", "anomalies")


def tasks(run: Run[Settings]) -> list[tuple[str, str]]:
    """Plans every network on every core that there is a compiler for."""
    tasks = []
    for core in run.settings.cores:
        try:
            find_c_toolchain(resolve_target(core))
        except ToolchainError as error:
            run.say(f"without {core}: {error}")
        else:
            tasks += list(product(run.settings.networks, [core]))
    return tasks


def measure(run: Run[Settings], task: tuple[str, str]) -> Iterator[Row]:
    """Counts a call, in all and by kernel, and compares its results with XLA's."""
    name, core = task
    with _library(name, core) as (library, same):
        count = count_instructions(library, core)
        cycles = sum(call.cycles for call in model_calls(library, core))
    instructions, arena = SOURCE[name]
    place = {"network": name, "core": core}
    yield {
        "table": "networks", **place, "instructions": count.total,
        "source_instructions": instructions, "ratio": count.total / instructions,
        "goal": GOALS[task], "workspace": library.sizes.workspace, "source_workspace": arena,
        "stack": library.sizes.stack, "code": library.sizes.code,
        "parameters": library.sizes.parameters,
        "same_bits": same,
    }  # fmt: skip
    yield {"table": "cycles", **place, "cycles": cycles, **PUBLISHED.get(task, {})}
    for function, many in count.by_function.items():
        share = many / count.total
        yield {"table": "kernels", **place, "kernel": function, "count": many, "share": share}


@contextlib.contextmanager
def _library(
    name: str, core: str, bits: int = BITS, requantize: Literal["float", "fixed"] = "float"
) -> Iterator[tuple[CLibrary, bool]]:
    """A network's library, and whether its results are XLA's."""
    g, codes, x = in_codes(name, bits, requantize)
    bundle = jaxeff_export.deploy(g, (codes, x), target=core)
    with tempfile.TemporaryDirectory() as home:
        library = bundle.export_c(f"{home}/net", name="net")
        (result,) = ExampleProgram(library, core).run()
        yield library, np.array_equal(result, jax.jit(g)(codes, x))


def bits_tasks(run: Run[Settings]) -> list[tuple[str, str, str]]:
    """Plans the networks in weights of fewer bits."""
    # Named: rows are kept by their task, and other parts have the same networks and cores.
    return list(product(["few bits"], run.settings.in_few_bits, run.settings.cores[:1]))


def measure_bits(run: Run[Settings], task: tuple[str, str, str]) -> Iterator[Row]:
    """Counts a network with weights of eight bits and of fewer, activations in eight."""
    _, name, core = task
    base = None
    for bits in (8, 4, 2):
        with _library(name, core, bits) as (library, same):
            many = count_instructions(library, core).total
        base = base or (many, library.sizes.parameters)
        yield {
            "table": "few bits", "network": name, "core": core, "bits": bits, "instructions": many,
            "times": many / base[0], "parameters": library.sizes.parameters,
            "share": library.sizes.parameters / base[1], "code": library.sizes.code,
            "same_bits": same,
        }  # fmt: skip


def other_tasks(run: Run[Settings]) -> list[tuple[str, str, Any]]:
    """Plans one network on the other processors, sums rounded by floats and in whole numbers."""
    return list(product(run.settings.networks[:1], run.settings.others, ("float", "fixed")))


def measure_others(run: Run[Settings], task: tuple[str, str, Any]) -> Iterator[Row]:
    """Counts a network on a processor that no source has numbers of."""
    name, core, requantize = task
    with _library(name, core, requantize=requantize) as (library, same):
        count = count_instructions(library, core)
    yield {
        "table": "others", "network": name, "core": core, "requantize": requantize,
        "instructions": count.total, "workspace": library.sizes.workspace,
        "code": library.sizes.code, "parameters": library.sizes.parameters, "same_bits": same,
    }  # fmt: skip


def moment_tasks(run: Run[Settings]) -> list[tuple[str, str, str]]:
    """Plans the moment passes."""
    return list(product(["moments"], run.settings.moments, run.settings.cores[:1]))


def measure_moments(run: Run[Settings], task: tuple[str, str, str]) -> Iterator[Row]:
    """Counts the moment passes of a network."""
    yield from moment_rows(*task[1:])


DIAGONAL = h.where(table="moments", **{"pass": "diagonal"})
NETWORKS, KERNELS = h.where(table="networks"), h.where(table="kernels")
CLAIMS = (
    *(
        h.Claim(
            label + ": XLA's bits", lambda row: int(row["same_bits"]), h.equals(1), 1,
            h.where(table=table),
        )
        for table, label in (
            ("networks", "{network}, {core}"), ("others", "{network}, {core}, {requantize}"),
            ("few bits", "{network}, {core}, weights of {bits} bits"),
        )
    ),
    h.Claim(
        "{network}, {core}: instructions over CMSIS-NN's", "ratio", h.at_most("goal"), None,
        NETWORKS,
    ),
    *(
        h.Claim(
            "{network}, {core}: bytes of working memory", "workspace", h.at_most(most), most,
            h.where(table="networks", network=name),
        )
        for name, most in MEMORY.items()
    ),
    h.Claim(
        "{network}, {core}: diagonal moments over the float pass's instructions", "times",
        h.at_most(3.2), 3.2, DIAGONAL,
    ),
    h.Claim(
        "{network}, {core}: diagonal moments over the float pass's memory", "memory times",
        h.at_most(3), 3, DIAGONAL,
    ),
)  # fmt: skip
COLUMNS = {
    "networks": (
        "network", "core", "instructions", "ratio", "goal", "workspace", "stack", "code",
        "parameters",
    ),
    "cycles": ("network", "core", "cycles", "X-CUBE-AI", "Plumerai"),
    "few bits": (
        "network", "core", "bits", "instructions", "times", "parameters", "share", "code",
        "same_bits",
    ),
    "others": (
        "network", "core", "requantize", "instructions", "workspace", "code", "parameters",
        "same_bits",
    ),
    "moments": (
        "network", "core", "pass", "instructions", "times", "workspace", "memory times", "code",
        "parameters", "error",
    ),
    "kernels": ("network", "core", "kernel", "count", "share"),
}  # fmt: skip

STUDY = h.Study(
    "microcontroller", __doc__,
    {
        "fast": Settings(("keywords", "anomalies"), ("cortex-m7",), ("anomalies",), (), ()),
        "default": Settings(("keywords", "images", "anomalies"), moments=("anomalies",), others=()),
        "full": Settings(),
    },
    (
        h.Part(tasks, measure), h.Part(bits_tasks, measure_bits),
        h.Part(other_tasks, measure_others), h.Part(moment_tasks, measure_moments),
    ), CLAIMS,
    (h.Plot("instructions", h.Bars("{network}\n{core}", "ratio", NETWORKS, guides=(1.0,), axes={
        "ylabel": "executed instructions over CMSIS-NN's"
    }), size=(8.0, 3.6)),),
    (h.Listing.each(COLUMNS),),
    differences=(
        "Cycles are estimated by llvm-mca with memory that nothing waits for; published ones are "
        "those of boards, which take more than such an estimate says.",
        "Parameters and inputs are random: instructions do not depend on them.",
        "CMSIS-NN takes and returns int8; ours takes and returns float32, in its workspace not "
        "counted.",
        "A Cortex-M85's code runs on the emulator's Cortex-M55: no released qemu has an M85.",
        "3.2 times was asked of moments when DS-CNN's float pass took 7.01 million instructions, "
        "which makes 22.4 million. Sums were kept as vectors of four then, which these cores don't "
        "have.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
