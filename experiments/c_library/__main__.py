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
from typing import Annotated, Any

import jax
import jaxeff_export
import numpy as np
from jaxeff_export import Bundle, ToolchainError, resolve_target
from jaxeff_export.targets import find_c_toolchain
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from experiments import engines
from experiments.c_library.calling import Loaded, Repeater
from experiments.c_library.subjects import Case, case
from experiments.harness import Least, Report, Row, Run, Study, Table
from experiments.latency.engines import deviation
from experiments.latency.engines.with_tvm import meter_of
from experiments.latency.tasks import cores
from experiments.timing import measure_rounds, ratio, summary

PEERS = ("onnxruntime", "litert")
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
    """What is measured.

    Attributes:
        rounds: Rounds of each timing.
        models: The networks of the calls.
        batches: Inputs per call.
        threaded: The networks that two threads share.
        sized: The networks whose memory is told.
    """

    rounds: Annotated[int, Least(1)] = 51
    models: tuple[str, ...] = ("tiny", "mlp", "lenet5")
    batches: tuple[Annotated[int, Least(1)], ...] = (1, 10)
    threaded: tuple[str, ...] = ("mlp", "lenet5", "resnet18")
    sized: tuple[str, ...] = ("lenet5",)


def run(run: Run[Settings]) -> list[Row]:
    """Everything, table by table."""
    engines.say_missing(run, PEERS)
    settings = run.settings
    todo: list[tuple[Any, ...]] = [
        ("calls", model, method, batch)
        for model in settings.models
        for method in ("deterministic", "moments")
        for batch in settings.batches
    ]
    if len(cores()) > 1:
        todo += [
            ("threads", model, batch) for model in settings.threaded for batch in settings.batches
        ]
    try:
        find_c_toolchain(resolve_target(CORE))
    except ToolchainError as error:
        run.say(f"without sizes: {error}")
    else:
        todo += [("sizes", model) for model in settings.sized]

    def task(what: tuple[Any, ...]) -> list[Row]:
        table, *rest = what
        if table == "calls":
            rows = _calls(case(*rest), settings.rounds)
        elif table == "threads":
            model, batch = rest
            rows = _threads(case(model, "deterministic", batch), settings.rounds)
        else:
            rows = _sizes(*rest)
        return [{"table": table, **row} for row in rows]

    return run.each(todo, task)


def _deployed(subject: Case, form: str, target: Any) -> Bundle:
    g, arguments = subject.forms[form]
    return jaxeff_export.deploy(g, arguments, target=target)


def _calls(subject: Case, rounds: int) -> list[Row]:
    repeater, here = Repeater(), {**resolve_target("host"), "num-cores": 1}
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
    times = measure_rounds(
        {"/".join(place): meter for place, meter in meters.items()}, rounds, SECONDS
    )
    rows = []
    for (engine, form), results in ((place, found.get(place)) for place in meters):
        values = times[f"{engine}/{form}"]
        row = {"model": subject.name, "method": subject.method, "batch": len(subject.net.x)}
        row |= {"engine": engine, "arithmetic": form, "ns": 1e6 * summary(values)["ms"]}
        row["spread"] = 1e6 * summary(values)["spread"]
        if results is not None:
            row["error"] = deviation(results, subject.expected(form))
        if engine == "c":
            row["same_bits"] = exact[form]
            others = ("bundle", *PEERS)
            row |= {
                f"over_{other}": ratio(values, times[f"{other}/{form}"])
                for other in others
                if f"{other}/{form}" in times
            }
        rows.append(row)
    return rows


def _threads(subject: Case, rounds: int) -> list[Row]:
    repeater, here = Repeater(), {**resolve_target("host"), "num-cores": 2}
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


def _sizes(model: str) -> list[Row]:
    rows = []
    for method in ("deterministic", "moments"):
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


def judge(report: Report) -> None:
    """Holds rows against the figures to reach."""
    for row in report.rows:
        if row["table"] == "calls" and row["engine"] == "c":
            _judge_call(report, row)
        if row["table"] == "threads":
            words = f"{row['model']}, batch {row['batch']}: bits with two threads are those of one"
            report.check(words, 1, int(row["same_bits"]), row["same_bits"])
        if row["table"] == "sizes":
            words = f"{row['model']}, {row['method']}, {row['arithmetic']}: "
            for memory, most in (("flash", FLASH), ("ram", RAM)):
                named = f"{words}bytes of {memory} on a {row['core']}"
                report.check(named, most, row[memory], row[memory] <= most)


def _judge_call(report: Report, row: Any) -> None:
    form = f"{row['method']}, {row['arithmetic']}"
    where = f"{row['model']}, batch {row['batch']}, {form}"
    report.check(f"{where}: the bundle's bits", 1, int(row["same_bits"]), row["same_bits"])
    if row["model"] == "tiny":
        if row["batch"] == 1 and row["method"] == "deterministic" and form.endswith("float32"):
            words, ns = "dispatch: nanoseconds of a call of next to nothing", row["ns"]
            report.check(words, DISPATCH_NS, ns, ns <= DISPATCH_NS)
        return
    for other in ("bundle", *PEERS):
        if f"over_{other}" in row:
            over, words = row[f"over_{other}"], f"{where}: over {other}'s call"
            report.check(words, OVER_BUNDLE, over, over <= OVER_BUNDLE, needs="default")


def draw(report: Report) -> dict[str, Figure]:
    """Calls at batch 1, by engine."""
    rows = [r for r in report.rows if r["table"] == "calls" and r["batch"] == 1]
    if not rows:
        return {}
    figure, axis = plt.subplots()
    names = list(dict.fromkeys(_label(row) for row in rows))
    for engine in dict.fromkeys(row["engine"] for row in rows):
        ours = [row for row in rows if row["engine"] == engine]
        where = [names.index(_label(row)) for row in ours]
        axis.semilogy(where, [row["ns"] for row in ours], "o", label=engine)
    axis.set_xticks(range(len(names)), names)
    axis.set_xlabel("network")
    axis.set_ylabel("nanoseconds of a call")
    return {"calls": figure}


def _label(row: Any) -> str:
    method = "" if row["method"] == "deterministic" else "\nmoments"
    return f"{row['model']}{method}\n{row['arithmetic']}"


def tables(report: Report) -> list[Table]:
    """A table for each kind of row."""
    return report.tables({
        "calls": (
            "model", "method", "batch", "arithmetic", "engine", "ns", "over_bundle",
            "over_onnxruntime", "over_litert", "error",
        ),
        "threads": ("model", "batch", "ns", "two_ns", "faster"),
        "sizes": (
            "model", "method", "arithmetic", "code", "parameters", "workspace", "flash", "ram"
        ),
    })  # fmt: skip


STUDY = Study(
    "c_library", __doc__,
    {
        "fast": Settings(5, ("tiny", "mlp"), (1,), ("mlp",), ("lenet5",)),
        "default": Settings(),
        "full": Settings(rounds=201),
    },
    (run,), (judge,), (draw,), (tables,),
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
