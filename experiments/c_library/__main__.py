"""What a C library costs: its calls, its threads and its memory, beside those it replaces.

    python -m experiments.c_library

1. `calls`: at batch 1 and 10, one thread: a call of the C library, of the bundle that it is made
   of (by TVM's clock), of ONNX Runtime's and of LiteRT's C interfaces where their packages can be
   imported. All are called from C, by the same loop, with inputs and results in place, in the same
   rounds. `tiny` is a network of three layers of 4 features: next to nothing but calls.
2. `threads`: the same library with and without its second thread, where there are two cores.
3. `sizes`: LeNet-5 at batch 1 for a Cortex-M7, where its compiler is installed: code, parameters,
   workspace, beside the memories that were asked for.

No timing is a fact here unless it is a ratio. ONNX Runtime and LiteRT are told to use one thread,
or have it by default.
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

from experiments import engines
from experiments import harness as h
from experiments.c_library.calling import Loaded, Repeater
from experiments.c_library.subjects import Case, case
from experiments.contests.tvm import host, meter_of
from experiments.harness import Row, Run
from experiments.latency.engines import deviation
from experiments.latency.tasks import cores
from experiments.timing import measure_rounds, ratio, summary

PEERS, METHODS = ("onnxruntime", "litert"), ("deterministic", "moments")
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
    threaded: tuple[str, ...] = ("mlp", "lenet5", "resnet18")  # the networks that two threads share
    sized: tuple[str, ...] = ("lenet5",)  # the networks whose memory is told


def tasks(run: Run[Settings]) -> list[tuple[Any, ...]]:
    """Plans what there are engines, cores and compilers for: a table and what its rows are of."""
    engines.say_missing(run, PEERS)
    of = run.settings
    places = product(of.models, METHODS, of.batches)
    found: list[tuple[Any, ...]] = [("calls", *place) for place in places]
    if len(cores()) > 1:
        found += [("threads", *place) for place in product(of.threaded, of.batches)]
    try:
        find_c_toolchain(resolve_target(CORE))
    except ToolchainError as error:
        run.say(f"without sizes: {error}")
    else:
        found += [("sizes", model) for model in of.sized]
    return found


def make(run: Run[Settings], task: tuple[Any, ...]) -> list[Row]:
    """Makes the rows of a task."""
    measure = {"calls": _calls, "threads": _threads, "sizes": _sizes}[task[0]]
    return [{"table": task[0], **row} for row in measure(run.settings.rounds, *task[1:])]


def _deployed(subject: Case, form: str, target: Any) -> Bundle:
    g, arguments = subject.forms[form]
    return jaxeff_export.deploy(g, arguments, target=target)


def _calls(rounds: int, *names: Any) -> list[Row]:
    subject, repeater, here = case(*names), Repeater(), host()
    inputs = [np.asarray(subject.net.x)]
    meters, found, exact = {}, {}, {}
    with tempfile.TemporaryDirectory() as home:
        for form in subject.forms:
            bundle = _deployed(subject, form, here)
            loaded = Loaded(bundle.export_c(f"{home}/{form}", name="net"), inputs)
            ours = ("c", form)
            meters[ours] = repeater.meter(loaded.function, *loaded.arguments(), keep=loaded)
            meters["bundle", form] = meter_of(bundle)
            meters[ours](1)
            found[ours] = [y.copy() for y in loaded.outputs]
            theirs = [np.asarray(y) for y in jax.tree.leaves(bundle.run(*inputs))]
            exact[form] = all(map(np.array_equal, found[ours], theirs))
    for peer in engines.available(PEERS):
        for form, meter, results in engines.load("experiments.c_library", peer).meters(
            subject, repeater
        ):
            if form in subject.forms:
                meters[peer, form], found[peer, form] = meter, results
    rows = []
    times = measure_rounds(meters, rounds, SECONDS)
    for (engine, form), values in times.items():
        row = {"model": subject.name, "method": subject.method, "batch": len(subject.net.x)}
        row |= {"engine": engine, "arithmetic": form, "ns": 1e6 * summary(values)["ms"]}
        row["spread"] = 1e6 * summary(values)["spread"]
        if (engine, form) in found:
            row["error"] = deviation(found[engine, form], subject.expected(form))
        if engine == "c":
            row["same_bits"] = exact[form]
            for other in ("bundle", *PEERS):
                if (other, form) in times:
                    row[f"over_{other}"] = ratio(values, times[other, form])
        rows.append(row)
    return rows


def _threads(rounds: int, model: str, batch: int) -> list[Row]:
    subject, repeater, here = case(model, "deterministic", batch), Repeater(), host(2)
    with tempfile.TemporaryDirectory() as home:
        net = subject.net
        bundle = jaxeff_export.deploy(net.f, (net.params, net.x), target=here)
        made = bundle.export_c(f"{home}/net", name="net", threads=2)
        loaded = Loaded(made, [np.asarray(subject.net.x)])
        meters, results = {}, {}
        for name, both in (("one", False), ("two", True)):
            arguments = loaded.arguments(threads=both)
            meters[name] = repeater.meter(loaded.function, *arguments, keep=loaded)
            meters[name](1)
            results[name] = [y.tobytes() for y in loaded.outputs]
        times = measure_rounds(meters, rounds, SECONDS)
        loaded.close()
    row = {"model": subject.name, "batch": len(subject.net.x)}
    row |= {"ns": 1e6 * summary(times["one"])["ms"], "two_ns": 1e6 * summary(times["two"])["ms"]}
    faster = ratio(times["one"], times["two"])
    return [row | {"faster": faster, "same_bits": results["one"] == results["two"]}]


def _sizes(rounds: int, model: str) -> list[Row]:
    rows = []
    for method in METHODS:
        subject = case(model, method, 1)
        for form in subject.forms:
            with tempfile.TemporaryDirectory() as home:
                made = _deployed(subject, form, CORE).export_c(f"{home}/net", name="net").sizes
            row: Row = {"model": model, "method": method, "arithmetic": form, "core": CORE}
            row |= made.to_json()
            row["source_code"] = LITERT_MICRO
            row["flash"] = made.code + made.parameters
            row["ram"] = made.workspace + made.arrays + made.stack
            rows.append(row)
    return rows


CALLS, THREADS, SIZES = (
    h.where(table="calls", engine="c"),
    h.where(table="threads"),
    h.where(table="sizes"),
)
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
    *(
        h.Claim(
            f"{FORM}: over {other}'s call", f"over_{other}", h.at_most(OVER_BUNDLE), OVER_BUNDLE,
            CALLS, "default", when=lambda row: row["model"] != "tiny",
        )
        for other in ("bundle", *PEERS)
    ),
    h.Claim(
        "{model}, batch {batch}: bits with two threads are those of one",
        lambda row: int(row["same_bits"]), h.equals(1), 1, THREADS,
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
        "model", "method", "batch", "arithmetic", "engine", "ns", "over_bundle",
        "over_onnxruntime", "over_litert", "error",
    ),
    "threads": ("model", "batch", "ns", "two_ns", "faster"),
    "sizes": ("model", "method", "arithmetic", "code", "parameters", "workspace", "flash", "ram"),
}  # fmt: skip

STUDY = h.Study(
    "c_library", __doc__,
    {
        "fast": Settings(5, ("tiny", "mlp"), (1,), ("mlp",), ("lenet5",)),
        "default": Settings(),
        "full": Settings(rounds=201),
    },
    (h.Part(tasks, make),), CLAIMS, (h.Plot("calls", COST),), (h.Listing.each(COLUMNS),),
    differences=(
        "The source's code is LiteRT for Microcontrollers' core runtime on a Cortex-M3, as its "
        "guide says; operators and the model's arena come on top. It was not built here.",
        "Moments in int8 have weights of int8 and compute in float32: variances have no arithmetic "
        "of codes.",
        "Parameters are random: neither speed nor sizes depend on them.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
