"""What a C library costs: its calls and its memory, beside the bundle that it is made of.

    python -m experiments.beyond.c_library

1. `calls`: at batch 1 and 10, one thread: a call of the C library from C, and of the bundle that it
   is made of (by TVM's clock), inputs and results in place, in the same rounds. `tiny` is a network
   of three layers of 4 features: next to nothing but calls.
2. `sizes`: networks at batch 1 for a Cortex-M7, where its compiler is installed: code, parameters,
   workspace, beside the memories that were asked for.

No timing is a fact here unless it is a ratio.
"""

import tempfile
from dataclasses import dataclass
from itertools import product
from typing import Any

import jax
import jaxeff_export
import numpy as np
from jaxeff_export import Bundle, ToolchainError, resolve_target
from jaxeff_export.targets import find_c_toolchain

from experiments import harness as h
from experiments.beyond.c_library.calling import Loaded, Repeater
from experiments.beyond.c_library.subjects import Case, case
from experiments.contests.tvm import host, meter_of
from experiments.harness import Row, Run
from experiments.latency.engines import deviation
from experiments.timing import measure_rounds, ratio, summary

METHODS = ("deterministic", "moments")
DISPATCH_NS = 100.0
OVER_BUNDLE = 1.0
SECONDS = 0.002
"""Of a measurement: shorter than a busy system's slices, so that most have no other program in."""
FLASH, RAM = 512 << 10, 128 << 10
LITERT_MICRO = 16 << 10
"""Bytes of LiteRT for Microcontrollers' core runtime on a Cortex-M3, as its guide says."""
CORE = "cortex-m7"


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    rounds: h.Count = 51  # rounds of each timing
    models: tuple[str, ...] = ("tiny", "mlp", "lenet5")  # the networks of the calls
    batches: tuple[h.Count, ...] = (1, 10)  # inputs per call
    sized: tuple[str, ...] = ("mlp", "lenet5")  # the networks whose memory is told


def tasks(run: Run[Settings]) -> list[tuple[Any, ...]]:
    """Plans what there are compilers for: a table and what its rows are of."""
    of = run.settings
    places = product(of.models, METHODS, of.batches)
    tasks: list[tuple[Any, ...]] = [("calls", *place) for place in places]
    try:
        find_c_toolchain(resolve_target(CORE))
    except ToolchainError as error:
        run.say(f"without sizes: {error}")
    else:
        tasks += [("sizes", model) for model in of.sized]
    return tasks


def make(run: Run[Settings], task: tuple[Any, ...]) -> list[Row]:
    """Makes the rows of a task."""
    measure = {"calls": _calls, "sizes": _sizes}[task[0]]
    return [{"table": task[0], **row} for row in measure(run.settings.rounds, *task[1:])]


def _deployed(subject: Case, form: str, target: Any) -> Bundle:
    g, arguments = subject.forms[form]
    return jaxeff_export.deploy(g, arguments, target=target)


def _calls(rounds: int, *names: Any) -> list[Row]:
    subject, repeater, here = case(*names), Repeater(), host()
    inputs = [np.asarray(subject.net.x)]
    meters, results, exact = {}, {}, {}
    with tempfile.TemporaryDirectory() as home:
        for form in subject.forms:
            bundle = _deployed(subject, form, here)
            loaded = Loaded(bundle.export_c(f"{home}/{form}", name="net"), inputs)
            ours = ("c", form)
            meters[ours] = repeater.meter(loaded.function, *loaded.arguments(), keep=loaded)
            meters["bundle", form] = meter_of(bundle)
            meters[ours](1)
            results[ours] = [y.copy() for y in loaded.outputs]
            theirs = [np.asarray(y) for y in jax.tree.leaves(bundle.run(*inputs))]
            exact[form] = all(map(np.array_equal, results[ours], theirs))
    rows = []
    times = measure_rounds(meters, rounds, SECONDS)
    for (engine, form), values in times.items():
        row = {"model": subject.name, "method": subject.method, "batch": len(subject.net.x)}
        row |= {"engine": engine, "arithmetic": form, "ns": 1e6 * summary(values)["ms"]}
        row["spread"] = 1e6 * summary(values)["spread"]
        if (engine, form) in results:
            row["error"] = deviation(results[engine, form], subject.expected(form))
        if engine == "c":
            row["same_bits"] = exact[form]
            row["over_bundle"] = ratio(values, times["bundle", form])
        rows.append(row)
    return rows


def _sizes(rounds: int, model: str) -> list[Row]:
    rows = []
    for method in METHODS:
        subject = case(model, method, 1)
        for form in subject.forms:
            with tempfile.TemporaryDirectory() as home:
                sizes = _deployed(subject, form, CORE).export_c(f"{home}/net", name="net").sizes
            row: Row = {"model": model, "method": method, "arithmetic": form, "core": CORE}
            row |= sizes.to_json()
            row["source_code"] = LITERT_MICRO
            row["flash"] = sizes.code + sizes.parameters
            row["ram"] = sizes.workspace + sizes.arrays + sizes.stack
            rows.append(row)
    return rows


CALLS, SIZES = h.where(table="calls", engine="c"), h.where(table="sizes")
DISPATCH = h.where(
    table="calls", engine="c", model="tiny", batch=1, method="deterministic", arithmetic="float32"
)


FORM = "{model}, batch {batch}, {method}, {arithmetic}"
CLAIMS = (
    h.Claim(f"{FORM}: the bundle's bits", lambda row: int(row["same_bits"]), h.equals(1), 1, CALLS),
    h.Claim(
        "dispatch: nanoseconds of a call of next to nothing",
        "ns", h.at_most(DISPATCH_NS), DISPATCH_NS, DISPATCH,
    ),
    h.Claim(
        f"{FORM}: over the bundle's call", "over_bundle", h.at_most(OVER_BUNDLE), OVER_BUNDLE,
        CALLS, "default", when=lambda row: row["model"] != "tiny",
    ),
    *(
        h.Claim(
            f"{{model}}, {{method}}, {{arithmetic}}: bytes of {memory} on a {{core}}",
            memory, h.at_most(most), most, SIZES,
        )
        for memory, most in (("flash", FLASH), ("ram", RAM))
    ),
)  # fmt: skip


def _label(row: Row) -> str:
    method = "" if row["method"] == "deterministic" else "\nmoments"
    return f"{row['model']}{method}\n{row['arithmetic']}"


COST = h.Curves(
    _label, "ns", h.where(table="calls", batch=1), hue="{engine}", style="o",
    axes={"yscale": "log", "xlabel": "network", "ylabel": "nanoseconds of a call"},
)  # fmt: skip
COLUMNS = {
    "calls": (
        "model", "method", "batch", "arithmetic", "engine", "ns", "over_bundle", "error",
    ),
    "sizes": ("model", "method", "arithmetic", "code", "parameters", "workspace", "flash", "ram"),
}  # fmt: skip

STUDY = h.Study(
    "c_library", __doc__,
    {
        "fast": Settings(15, ("tiny", "mlp"), (1,)),
        "default": Settings(),
        "full": Settings(rounds=201),
    },
    (h.Part(tasks, make),), CLAIMS, (h.Plot("calls", COST),), (h.Listing.each(COLUMNS),),
    differences=(
        "The published code is LiteRT for Microcontrollers' core runtime on a Cortex-M3, as its "
        "guide says; operators and the model's arena come on top. It was not built here.",
        "Moments in int8 have weights of int8 and compute in float32: variances have no arithmetic "
        "of codes.",
        "Parameters are random: neither speed nor sizes depend on them.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
