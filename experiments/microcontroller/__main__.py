"""Instructions and memory of the four networks of MLPerf Tiny as C libraries in int8.

    python -m experiments.microcontroller

Instructions of a call are counted by a plugin of qemu, so they are exact and the same in every run;
they are no time. The source is Arm's CMSIS-NN (commit 99f736a, gcc 12.2 at -O3, its functions
called one after the other on the same networks), counted in the same way. Only its ratios to an
earlier state of this library were kept, to two digits, so its counts are right within 1 %.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import jax
import jaxeff_export
import numpy as np
from jaxeff_export import ToolchainError, resolve_target
from jaxeff_export.clib import ExampleProgram, count_instructions
from jaxeff_export.targets import find_c_toolchain

from experiments import harness as h
from experiments.harness import Row, Run
from experiments.microcontroller.networks import in_codes

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
MEMORY = {"keywords": 10_000, "images": 38_000, "wake_words": 60_000}


@dataclass(frozen=True)
class Settings:
    """What is counted.

    Attributes:
        networks: The networks.
        cores: The processors.
    """

    networks: tuple[str, ...] = tuple(SOURCE)
    cores: tuple[str, ...] = ("cortex-m7", "cortex-m4")


def tasks(run: Run[Settings]) -> list[tuple[str, str]]:
    """Plans every network on every core that there is a compiler for."""
    found = []
    for core in run.settings.cores:
        try:
            find_c_toolchain(resolve_target(core))
        except ToolchainError as error:
            run.say(f"without {core}: {error}")
        else:
            found += list(product(run.settings.networks, [core]))
    return found


def measure(run: Run[Settings], task: tuple[str, str]) -> Iterator[Row]:
    """Counts a call, in all and by kernel, and compares its results with XLA's."""
    name, core = task
    g, codes, x = in_codes(name)
    bundle = jaxeff_export.deploy(g, (codes, x), target=core)
    with tempfile.TemporaryDirectory() as home:
        library = bundle.export_c(f"{home}/net", name="net")
        count = count_instructions(library, core)
        (result,) = ExampleProgram(library, core).run()
    instructions, arena = SOURCE[name]
    place = {"network": name, "core": core}
    yield {
        "table": "networks", **place, "instructions": count.total,
        "source_instructions": instructions, "ratio": count.total / instructions,
        "goal": GOALS[task], "workspace": library.sizes.workspace, "source_workspace": arena,
        "stack": library.sizes.stack, "code": library.sizes.code,
        "parameters": library.sizes.parameters,
        "same_bits": np.array_equal(result, jax.jit(g)(codes, x)),
    }  # fmt: skip
    for function, many in count.by_function.items():
        share = many / count.total
        yield {"table": "kernels", **place, "kernel": function, "count": many, "share": share}


NETWORKS, KERNELS = h.where(table="networks"), h.where(table="kernels")
CLAIMS = (
    h.Claim(
        "{network}, {core}: XLA's bits", lambda row: int(row["same_bits"]), h.equals(1), 1, NETWORKS
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
)  # fmt: skip
COLUMNS = {
    "networks": (
        "network", "core", "instructions", "ratio", "goal", "workspace", "stack", "code",
        "parameters",
    ),
    "kernels": ("network", "core", "kernel", "count", "share"),
}  # fmt: skip

STUDY = h.Study(
    "microcontroller", __doc__,
    {
        "fast": Settings(("keywords", "anomalies"), ("cortex-m7",)),
        "default": Settings(("keywords", "images", "anomalies")),
        "full": Settings(),
    },
    (h.Part(tasks, measure),), CLAIMS,
    (h.Plot("instructions", h.Bars("{network}\n{core}", "ratio", NETWORKS)),),
    (h.Listing.each(COLUMNS),),
    differences=(
        "Parameters and inputs are random: instructions do not depend on them.",
        "The source takes and returns int8; ours takes and returns float32, in its workspace not "
        "counted.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
