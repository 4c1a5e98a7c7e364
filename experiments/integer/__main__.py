"""What integer arithmetic is worth; run it with `python -m experiments.integer`.

1. `networks`: MLP 784-100-100-10, LeNet-5 and ResNet-18 (32x32) at batch 1, 10 and 100, one thread
   and two: int8 (also with fixed-point multipliers) and float32 compiled by us; int8 (QDQ, static,
   per channel) and float32 by ONNX Runtime, int8 by LiteRT (XNNPACK, the first two networks, our
   ranges), where they can be imported. Ours are timed by TVM's clock, without a call of Python; of
   ONNX Runtime's the time of a graph that hands back an example is taken off, of the same rounds;
   LiteRT's is a call of `invoke`, of which nothing is taken off.
2. `sizes`: bytes of the bundles at 8 and 2 bits, over float32's.
3. `agreement`: results of the compiled integer network that are JAX's bit for bit, here and on an
   emulated Cortex-A72.
4. `crossover`: a 3x3 convolution by planes of few bits, over int8 and float32, beside what the
   number of instructions lets expect where all of them take the same time.
5. `depthwise`: depthwise convolutions in int8 over float32.
6. `modelled`: the innermost loops of the networks on a Cortex-A72 by llvm-mca's static model: no
   measurement.
7. `tiles`: register tiles of the rule against the best of all, on the clock.

Times are of windows of two milliseconds: where others share the processor, longer ones hold their
turns too.

Klein's thesis finds kernels on ARM's A cores bound by reads of the first cache (section 3.2.1), and
that pruning and quantization save time only where layouts fit (section 3.6). Times here are of this
x86 processor and of nothing else.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import jax
import jaxeff_export
import numpy as np
from jaxeff_export import BoardError, Bundle, ToolchainError, resolve_target
from jaxeff_export.boards import require_emulator
from jaxeff_export.targets import toolchain

from experiments import engines
from experiments.harness import SELECTS, Least, Row, Run, Study
from experiments.integer import judging, kernels
from experiments.integer.subjects import Subject, subject
from experiments.integer.tiles import LAYERS, tiles
from experiments.latency.engines.with_tvm import meter_of
from experiments.timing import measure_rounds, metered, ratio, summary
from jaxeff.compression import integer

WITH_LITERT = ("mlp", "lenet5")
EMULATED = ("mlp", "lenet5")
WINDOW = 0.002
Model = Literal["mlp", "lenet5", "resnet18"]
Part = Literal["networks", "sizes", "agreement", "crossover", "depthwise", "modelled", "tiles"]


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        rounds: Rounds of each timing.
        models: The networks.
        batches: Inputs per prediction.
        images: Images that results are compared on.
        emulated: Images that an emulated ARM core is compared on, if there is one.
        threads: Of each engine.
        pairs: Pairs of widths of the crossover.
        tiles: Layers whose tiles are timed.
        parts: Parts to run; all if none is given.
    """

    rounds: Annotated[int, Least(1)] = 41
    models: Annotated[tuple[Model, ...], SELECTS] = get_args(Model)
    batches: Annotated[tuple[Annotated[int, Least(1)], ...], SELECTS] = (1, 10, 100)
    images: Annotated[int, Least(1)] = 10_000
    emulated: Annotated[int, Least(1)] = 200
    threads: Annotated[tuple[Annotated[int, Least(1)], ...], SELECTS] = (1, 2)
    pairs: Annotated[int, Least(1)] = len(kernels.PAIRS)
    tiles: Annotated[int, SELECTS] = len(LAYERS)
    parts: Annotated[tuple[Part, ...], SELECTS] = ()


def run(run: Run[Settings]) -> list[Row]:
    """Everything, table by table."""
    engines.say_missing(run, ["onnxruntime", "litert"])
    settings = run.settings
    todo = [task for part, task in _plan(run) if not settings.parts or part in settings.parts]

    def task(what: tuple[Any, ...]) -> list[Row]:
        name, *rest = what
        if name == "crossover":
            return kernels.crossover(settings.rounds, *rest)
        if name == "depthwise":
            return kernels.depthwise(settings.rounds)
        if name == "network":
            model, batch, threads = rest
            return _network(subject(model, batch), settings.rounds, threads)
        if name == "modelled":
            return _modelled(*rest)
        if name == "tiles":
            return tiles(settings.rounds, *rest)
        if name == "emulated":
            model, images = rest
            return _agreement(model, images, target="cortex-a72", board="emulated")
        return _sizes(*rest) if name == "sizes" else _agreement(*rest)

    return run.each(todo, task)


def _plan(run: Run[Settings]) -> Iterator[tuple[Part, tuple[Any, ...]]]:
    """Tasks, by part; of what isn't here is said that it is left out."""
    settings = run.settings
    models = settings.models
    for threads in settings.threads:
        for batch in settings.batches:
            for model in models:
                yield "networks", ("network", model, batch, threads)
    yield "crossover", ("crossover", settings.pairs)
    yield "depthwise", ("depthwise",)
    yield from (("sizes", ("sizes", model)) for model in models)
    few = [model for model in models if model in EMULATED]
    yield from (("agreement", ("agreement", model, settings.images)) for model in few)
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
            for model in few:
                yield "agreement", ("emulated", model, settings.emulated)
        if shutil.which("llvm-mca"):
            for model in models:
                yield from (("modelled", ("modelled", model, *widths)) for widths in WIDTHS)
        else:
            run.say("without a static model: llvm-mca isn't installed")
    yield from (("tiles", ("tiles", name, 1)) for name, _ in LAYERS[: settings.tiles])


def _target(threads: int = 1) -> dict[str, Any]:
    return {**resolve_target("host"), "num-cores": threads}


def _deployed(
    net: Subject, bits: int | None, threads: int = 1, requantize: Any = "float"
) -> Bundle:
    target = _target(threads)
    if bits is None:
        return jaxeff_export.deploy(net.f, (net.params, net.x), target=target)
    g, codes = net.integer(bits, requantize)
    return jaxeff_export.deploy(g, (codes, net.x), target=target)


def _network(net: Subject, rounds: int, threads: int) -> list[Row]:
    ours = {
        "int8": _deployed(net, 8, threads),
        "int8 fixed": _deployed(net, 8, threads, "fixed"),
        "float32": _deployed(net, None, threads),
    }
    exact = {name: ours[name].check().max_abs_error == 0 for name in ("int8", "int8 fixed")}
    meters = {("tvm", name): meter_of(bundle) for name, bundle in ours.items()}
    there = engines.available(["onnxruntime", *(["litert"] if net.model in WITH_LITERT else [])])
    for engine in there:
        calls = engines.load("experiments.integer", engine).calls(net, threads)
        meters |= {(engine, name): metered(call) for name, call in calls.items()}
    named = {"/".join(place): meter for place, meter in meters.items()}
    times = measure_rounds(named, rounds, WINDOW)
    waits = times.get("onnxruntime/dispatch", [0.0] * rounds)
    for name in ("int8", "float32"):
        if f"onnxruntime/{name}" in times:
            pairs = zip(times[f"onnxruntime/{name}"], waits, strict=False)
            times[f"onnxruntime/{name}"] = [max(t - wait, 1e-6) for t, wait in pairs]
    rows = []
    for engine, kind in meters:
        values = times[f"{engine}/{kind}"]
        row = {"table": "networks", "model": net.model, "batch": len(net.x), "threads": threads}
        row |= {"engine": engine, "arithmetic": kind, **summary(values)}
        if kind != "dispatch" and f"{engine}/float32" in times:
            row["over_float32"] = ratio(times[f"{engine}/float32"], values)
        for peer in there:
            if engine == "tvm" and f"{peer}/{kind}" in times:
                row[f"over_{peer}"] = ratio(values, times[f"{peer}/{kind}"])
        if engine == "tvm" and kind in exact:
            row["exact"], row["instructions"] = exact[kind], _instructions()
        rows.append(row)
    return rows


def _instructions() -> str:
    from jaxeff_export.operators.integer import dot_of
    from tvm.target import Target

    return dot_of(Target(_target())).name


def _sizes(model: str) -> list[Row]:
    net = subject(model, 1)
    of = {bits: _deployed(net, bits) for bits in (None, 8, 2)}
    size = {
        bits: sum(f.stat().st_size for f in bundle.folder.iterdir()) for bits, bundle in of.items()
    }
    arrays = {
        bits: sum((b.folder / n).stat().st_size for n in ("parameters.npz", "derived.npz"))
        for bits, b in of.items()
    }
    return [
        {
            "table": "sizes",
            "model": model,
            "bits": bits,
            "bytes": size[bits],
            "over_float32": size[bits] / size[None],
            "arrays": arrays[bits],
            "arrays_over_float32": arrays[bits] / arrays[None],
        }
        for bits in (8, 2)
    ]


def _agreement(model: str, images: int, target: Any = None, board: str = "local") -> list[Row]:
    net = subject(model, 100)
    g, codes = net.integer(8)
    bundle = jaxeff_export.deploy(g, (codes, net.x), target=target or _target())
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


WIDTHS = ((8, 8), (1, 2))


def _modelled(model: str, weights: int, activations: int) -> list[Row]:
    net = subject(model, 1)
    spec = net.spec(weights, activations)
    g = integer(net.f, spec)
    bundle = jaxeff_export.deploy(g, (g.convert(net.params, net.x), net.x), target="cortex-a72")
    work = bundle.manifest.kernels
    loops = [loop for loop in bundle.model() if loop.products and loop.name in work]
    rows = []
    for loop in loops:
        row: dict[str, Any] = {
            "table": "modelled",
            "model": model,
            "bits": f"{activations} x {weights}",
        }
        of = "bits" if loop.products == loop.width * loop.multiplies else "bytes"
        row |= {"of": of, "kernel": loop.name, "per_cycle": loop.per_cycle, "spills": loop.spills}
        rows.append(row | {"products": work[loop.name]["products"], "level": loop.level})
    return rows


STUDY = Study(
    "integer", __doc__,
    {
        "fast": Settings(5, ("mlp", "lenet5"), (1, 10), 200, 100, (1,), 3, 3),
        "default": Settings(),
        "full": Settings(rounds=201),
    },
    (run,), (judging.judge,), (judging.draw,), (judging.tables,),
    differences=(
        "The source deploys on ARM boards; these are times of an x86 processor.",
        "Parameters are random: speed doesn't depend on them, accuracy isn't looked at here.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
