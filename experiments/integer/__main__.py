"""What integer arithmetic is worth: int8 beside float32 and ONNX Runtime, and few bits by planes.

    python -m experiments.integer

1. `networks`: MLP 784-100-100-10, LeNet-5 and ResNet-18 (32x32) at batch 1, 10 and 100, one thread:
   int8 and float32 compiled by us, int8 (QDQ, static, per channel) and float32 by ONNX Runtime
   where it can be imported. Ours are timed by TVM's clock, without a call from Python; of ONNX
   Runtime's the time of a graph that does nothing is taken off, measured in the same rounds.
2. `sizes`: bytes of the bundles at 8 and 2 bits, over float32's.
3. `agreement`: results of the compiled integer network that are JAX's bit for bit.
4. `crossover`: a 3x3 convolution by planes of few bits, over int8 and float32, beside the roof that
   the number of instructions sets.

The source (thesis T964) finds kernels on ARM's A cores bound by reads of the first cache; T1139 to
T1163 that pruning and quantization save time only where layouts fit. Times here are of this x86
processor and of nothing else.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jaxeff_export
import numpy as np
from jaxeff_export import Bundle, resolve_target
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from experiments import engines
from experiments.harness import Least, Report, Row, Run, Study, Table
from experiments.integer import kernels
from experiments.integer.subjects import Subject, subject
from experiments.latency.engines.with_tvm import meter_of
from experiments.timing import measure_rounds, metered, ratio, summary

OVER_FLOAT = {"vnni": 2.5, "avx2": 1.5}
OVER_PEER = 1.0
SIZES = {8: 0.30, 2: 0.10}
PLANES_OVER_INT8 = 4.0


@dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
        rounds: Rounds of each timing.
        models: The networks.
        batches: Inputs per prediction.
        images: Images that results are compared on.
        pairs: Pairs of widths of the crossover.
    """

    rounds: Annotated[int, Least(1)] = 15
    models: tuple[str, ...] = ("mlp", "lenet5", "resnet18")
    batches: tuple[Annotated[int, Least(1)], ...] = (1, 10, 100)
    images: Annotated[int, Least(1)] = 10_000
    pairs: Annotated[int, Least(1)] = len(kernels.PAIRS)


def run(run: Run[Settings]) -> list[Row]:
    """Everything, table by table."""
    engines.say_missing(run, ["onnxruntime"])
    settings = run.settings
    todo: list[tuple[Any, ...]] = [("crossover", settings.pairs)]
    todo += [("network", model, batch) for batch in settings.batches for model in settings.models]
    todo += [("sizes", model) for model in settings.models]
    todo += [("agreement", m, settings.images) for m in settings.models if m != "resnet18"]

    def task(what: tuple[Any, ...]) -> list[Row]:
        name, *rest = what
        if name == "crossover":
            return kernels.crossover(settings.rounds, *rest)
        if name == "network":
            return _network(subject(*rest), settings.rounds)
        return _sizes(*rest) if name == "sizes" else _agreement(*rest)

    return run.each(todo, task)


def _target() -> dict[str, Any]:
    return {**resolve_target("host"), "num-cores": 1}


def _deployed(net: Subject, bits: int | None) -> Bundle:
    if bits is None:
        return jaxeff_export.deploy(net.f, (net.params, net.x), target=_target())
    g, codes = net.integer(bits)
    return jaxeff_export.deploy(g, (codes, net.x), target=_target())


def _network(net: Subject, rounds: int) -> list[Row]:
    ours = {"int8": _deployed(net, 8), "float32": _deployed(net, None)}
    exact = ours["int8"].check().max_abs_error == 0
    meters = {("tvm", name): meter_of(bundle) for name, bundle in ours.items()}
    if engines.available(["onnxruntime"]):
        from experiments.integer.with_onnxruntime import calls

        meters |= {("onnxruntime", name): metered(call) for name, call in calls(net, 1).items()}
    named = {"/".join(place): meter for place, meter in meters.items()}
    times = measure_rounds(named, rounds)
    waits = times.get("onnxruntime/dispatch", [0.0] * rounds)
    for name in ("int8", "float32"):
        if f"onnxruntime/{name}" in times:
            pairs = zip(times[f"onnxruntime/{name}"], waits, strict=True)
            times[f"onnxruntime/{name}"] = [max(t - wait, 1e-6) for t, wait in pairs]
    rows = []
    for engine, kind in meters:
        values = times[f"{engine}/{kind}"]
        row = {"table": "networks", "model": net.model, "batch": len(net.x), "engine": engine}
        row |= {"arithmetic": kind, **summary(values)}
        if kind != "dispatch":
            row["over_float32"] = ratio(times[f"{engine}/float32"], values)
        if engine == "tvm" and f"onnxruntime/{kind}" in times:
            row["over_onnxruntime"] = ratio(values, times[f"onnxruntime/{kind}"])
        if (engine, kind) == ("tvm", "int8"):
            row["exact"], row["instructions"] = exact, _instructions()
        rows.append(row)
    return rows


def _instructions() -> str:
    from jaxeff_export.operators.integer.dots import dot_of
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


def _agreement(model: str, images: int) -> list[Row]:
    net = subject(model, 100)
    g, codes = net.integer(8)
    bundle = jaxeff_export.deploy(g, (codes, net.x), target=_target())
    jitted = jax.jit(g)
    same = equal = 0
    for i in range(-(-images // 100)):
        x = jax.random.normal(jax.random.key(i), net.x.shape)
        here, there = np.asarray(jitted(codes, x)), np.asarray(bundle.run(x))
        same += int((here.argmax(1) == there.argmax(1)).sum())
        equal += int((here == there).all(1).sum())
    count = 100 * -(-images // 100)
    row = {"table": "agreement", "model": model, "images": count}
    return [row | {"same_class": same / count, "same_bits": equal / count}]


def judge(report: Report) -> None:
    """Holds rows against the figures to reach."""
    rows = report.rows
    for row in rows:
        if row["table"] == "networks" and row["engine"] == "tvm":
            _judge_network(report, row)
        if row["table"] == "sizes":
            words = f"{row['model']}: bundle of {row['bits']} bits over float32's"
            limit, ratio_ = SIZES[row["bits"]], row["over_float32"]
            report.check(words, limit, ratio_, ratio_ <= limit)
        if row["table"] == "agreement":
            words = f"{row['model']}: results on {row['images']} images that are JAX's bit for bit"
            report.check(words, 1.0, row["same_bits"], row["same_bits"] == 1)
    first = [row for row in rows if row["table"] == "crossover" and row["bits"] == "1 x 1"]
    for row in first:
        words = "1 x 1 bits by planes over int8 (its roof is in the row)"
        target = min(PLANES_OVER_INT8, row["roof_over_int8"])
        report.check(words, target, row["over_int8"], row["over_int8"] >= target, needs="default")


def _judge_network(report: Report, row: Any) -> None:
    where = f"{row['model']}, batch {row['batch']}"
    if row["arithmetic"] == "int8":
        least = OVER_FLOAT["vnni" if row["instructions"] == "vpdpbusd" else "avx2"]
        words, faster = f"{where}: int8 over our float32", row["over_float32"]
        report.check(words, least, faster, faster >= least, needs="default")
        report.check(f"{where}: int8 is JAX's bit for bit", 1, int(row["exact"]), row["exact"])
    if "over_onnxruntime" in row:
        words = f"{where}: our {row['arithmetic']} over ONNX Runtime's"
        over = row["over_onnxruntime"]
        report.check(words, OVER_PEER, over, over <= OVER_PEER, needs="default")


def draw(report: Report) -> dict[str, Figure]:
    """Speed over the product of the widths."""
    rows = [row for row in report.rows if row["table"] == "crossover" and "product" in row]
    if not rows:
        return {}
    figure, axis = plt.subplots()
    products = [row["product"] for row in rows]
    axis.loglog(products, [row["over_int8"] for row in rows], "o", label="measured")
    axis.loglog(products, [row["roof_over_int8"] for row in rows], "s", mfc="none", label="roof")
    axis.axhline(1, color="gray", label="int8")
    axis.set_xlabel("bits of activations times bits of weights")
    axis.set_ylabel("speed of planes over int8")
    return {"crossover": figure}


def tables(report: Report) -> list[Table]:
    """A table for each kind of row."""
    columns = {
        "networks": ("model", "batch", "engine", "arithmetic", "ms", "spread", "over_float32", "over_onnxruntime"),
        "sizes": ("model", "bits", "bytes", "over_float32", "arrays_over_float32"),
        "agreement": ("model", "images", "same_class", "same_bits"),
        "crossover": ("bits", "ms", "gmacs", "over_int8", "roof_over_int8", "over_float32"),
    }  # fmt: skip
    found = [
        (name, [r for r in report.rows if r["table"] == name], names)
        for name, names in columns.items()
    ]
    return [Table(name, rows, names) for name, rows, names in found if rows]


STUDY = Study(
    "integer", __doc__,
    {
        "fast": Settings(3, ("mlp", "lenet5"), (1, 10), 200, 3),
        "default": Settings(),
        "full": Settings(rounds=51),
    },
    run, judge, draw, tables,
    differences=(
        "The source deploys on ARM boards; these are times of an x86 processor.",
        "Parameters are random: speed doesn't depend on them, accuracy isn't looked at here.",
    ),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
