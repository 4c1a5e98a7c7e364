"""What integer arithmetic is worth; run it with `python -m experiments.beyond.integer`.

1. `networks`: MLP 784-100-100-10, LeNet-5 and ResNet-18 (32x32) at batch 1, 10 and 100, one thread
   and two: int8 (also with fixed-point multipliers) and float32 compiled by us; int8 (QDQ, static,
   per channel) and float32 by ONNX Runtime, where it can be imported. Ours are timed by TVM's clock
   without a call of Python. From ONNX Runtime's the time of a graph that hands back an example is
   taken off, of the same rounds.
2. `sizes`: bytes of the bundles at 8 and 2 bits, over float32's.
3. `agreement`: results of the compiled integer network that are JAX's bit for bit, here and on an
   emulated Cortex-A72.
4. `crossover`: a 3x3 convolution by planes of few bits, over int8 and float32, beside what the
   number of instructions lets expect where all of them take the same time.

Times are of windows of two milliseconds: where others share the processor, longer ones hold their
turns too.

Klein's thesis finds kernels on ARM's A cores bound by reads of the first cache (section 3.2.1), and
that pruning and quantization save time only where layouts fit (section 3.6). Times here are of this
x86 processor and of nothing else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, get_args

import jax
import jaxeff_export
import numpy as np
from jaxeff_export import BoardError, Bundle, ToolchainError, resolve_target
from jaxeff_export.boards import require_emulator
from jaxeff_export.operators.integer import dot_of
from jaxeff_export.targets import toolchain
from tvm.target import Target

from experiments import engines
from experiments.beyond.integer import judging, kernels
from experiments.beyond.integer.subjects import subject
from experiments.contests.tvm import host, meter_of
from experiments.harness import SELECTS, Count, Least, Listing, Part, Row, Run, Study
from experiments.timing import measure_rounds, metered, ratio, summary

SMALL = ("mlp", "lenet5")
"""Networks that an emulator is quick enough for."""
WINDOW = 0.002
Model = Literal["mlp", "lenet5", "resnet18"]
Table = Literal["networks", "sizes", "agreement", "crossover"]


@dataclass(frozen=True)
class Settings:
    """What is measured."""

    rounds: Count = 41  # rounds of each timing
    models: Annotated[tuple[Model, ...], SELECTS] = get_args(Model)  # the networks
    batches: Annotated[tuple[Count, ...], SELECTS] = (1, 10, 100)  # inputs per prediction
    images: Count = 10_000  # images that results are compared on
    emulated: Count = 200  # images that an emulated ARM core is compared on, if there is one
    threads: Annotated[tuple[Count, ...], SELECTS] = (1, 2)  # of each engine
    pairs: Annotated[int, Least(1)] = len(kernels.PAIRS)  # pairs of widths of the crossover
    parts: Annotated[tuple[Table, ...], SELECTS] = ()  # parts to run; all if none is given


def tasks(run: Run[Settings]) -> list[tuple[Any, ...]]:
    """Plans what was asked for; says what is left out because something isn't here."""
    engines.say_missing(run, ["onnxruntime"])
    of, models = run.settings, run.settings.models
    few = [model for model in models if model in SMALL]
    tables: dict[Table, list[Any]] = {
        "networks": [("network", m, b, t) for t, b, m in product(of.threads, of.batches, models)],
        "crossover": [("crossover", of.pairs)],
        "sizes": [("sizes", model) for model in models],
        "agreement": [("agreement", model, of.images) for model in few],
    }
    try:
        toolchain.find_linker(resolve_target("cortex-a72"))
    except ToolchainError as error:
        run.say(f"without code of a Cortex-A72: {error}")
    else:
        try:
            require_emulator()
        except (BoardError, ToolchainError) as error:
            run.say(f"without an emulated core: {error}")
        else:
            tables["agreement"] += [("emulated", model, of.emulated) for model in few]
    return [task for part, todo in tables.items() for task in todo if part in (of.parts or tables)]


def make(run: Run[Settings], task: tuple[Any, ...]) -> list[Row]:
    """Makes the rows of a task."""
    rounds, (name, *of) = run.settings.rounds, task
    makers: dict[str, Callable[..., list[Row]]] = {
        "network": lambda *of: _network(rounds, *of),
        "crossover": lambda pairs: kernels.crossover(rounds, pairs),
        "sizes": _sizes, "agreement": _agreement,
        "emulated": lambda model, images: _agreement(model, images, "cortex-a72", "emulated"),
    }  # fmt: skip
    return makers[name](*of)


def _deployed(
    model: str, batch: int, bits: int | None, target: Any, requantize: Any = "float"
) -> Bundle:
    net = subject(model, batch)
    g, params = (net.f, net.params) if bits is None else net.integer(bits, requantize)
    return jaxeff_export.deploy(g, (params, net.x), target=target)


def _network(rounds: int, model: str, batch: int, threads: int) -> list[Row]:
    net, target = subject(model, batch), host(threads)
    ours = {
        "int8": _deployed(model, batch, 8, target),
        "int8 fixed": _deployed(model, batch, 8, target, "fixed"),
        "float32": _deployed(model, batch, None, target),
    }
    exact = {name: ours[name].check().max_abs_error == 0 for name in ("int8", "int8 fixed")}
    meters = {("tvm", name): meter_of(bundle) for name, bundle in ours.items()}
    if engines.available(["onnxruntime"]):
        calls = engines.load("experiments.beyond.integer", "onnxruntime").calls(net, threads)
        meters |= {("onnxruntime", name): metered(call) for name, call in calls.items()}
    times = measure_rounds(meters, rounds, WINDOW)
    waits = times.get(("onnxruntime", "dispatch"), [])
    for place in (("onnxruntime", "int8"), ("onnxruntime", "float32")):
        if waits:
            pairs = zip(times[place], waits, strict=False)
            times[place] = [max(t - wait, 1e-6) for t, wait in pairs]
    rows = []
    for (engine, kind), values in times.items():
        row = {"table": "networks", "model": model, "batch": batch, "threads": threads}
        row |= {"engine": engine, "arithmetic": kind, **summary(values)}
        if kind != "dispatch" and (engine, "float32") in times:
            row["over_float32"] = ratio(times[engine, "float32"], values)
        if engine == "tvm" and ("onnxruntime", kind) in times:
            row["over_onnxruntime"] = ratio(values, times["onnxruntime", kind])
        if engine == "tvm" and kind in exact:
            row["exact"], row["instructions"] = exact[kind], dot_of(Target(host())).name
        rows.append(row)
    return rows


def _sizes(model: str) -> list[Row]:
    sizes = {}
    for bits in (None, 8, 2):
        bundle = _deployed(model, 1, bits, host())
        of = {file.name: file.stat().st_size for file in bundle.folder.iterdir()}
        sizes[bits] = sum(of.values()), of["parameters.npz"] + of["derived.npz"]
    whole, arrays = sizes.pop(None)
    return [
        {
            "table": "sizes", "model": model, "bits": bits, "bytes": of[0],
            "over_float32": of[0] / whole, "arrays": of[1], "arrays_over_float32": of[1] / arrays,
        }
        for bits, of in sizes.items()
    ]  # fmt: skip


def _agreement(model: str, images: int, target: Any = None, board: str = "local") -> list[Row]:
    net = subject(model, 100)
    g, codes = net.integer(8)
    bundle = jaxeff_export.deploy(g, (codes, net.x), target=target or host())
    jitted = jax.jit(g)
    same = equal = 0
    for i in range(-(-images // 100)):
        x = jax.random.normal(jax.random.key(i), net.x.shape)
        here, there = np.asarray(jitted(codes, x)), np.asarray(bundle.run(x, board=board))
        same += int((here.argmax(1) == there.argmax(1)).sum())
        equal += int((here == there).all(1).sum())
    count = 100 * -(-images // 100)
    row = {"table": "agreement", "model": model, "where": target or "host", "images": count}
    return [row | {"same_class": same / count, "same_bits": equal / count}]


STUDY = Study(
    "integer", __doc__,
    {
        "fast": Settings(11, ("mlp", "lenet5"), (10,), 200, 100, (1,), 3),
        "default": Settings(),
        "full": Settings(rounds=201),
    },
    (Part(tasks, make),), judging.CLAIMS, (judging.CROSSOVER,), (Listing.each(judging.COLUMNS),),
    differences=(
        "The thesis deploys on ARM boards; these are times of an x86 processor.",
        "Parameters are random: speed doesn't depend on them, accuracy isn't looked at here.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
