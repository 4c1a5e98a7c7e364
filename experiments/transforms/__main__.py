"""What the transforms cost, everything side by side in one run.

    python -m experiments.transforms

1. FLOPs and bytes, by XLA's own count, of `noisy`, `quantized` and `moments` on LeNet-5 and
   ResNet-18, each beside the same network written by hand;
2. how long reading ResNet-18 takes;
3. the moment pass of LeNet-5 and of the MLP 784-100-100-10 against 30 weight samples, with the
   weights drawn on every call and beforehand. Rounds are interleaved, so ratios hold on a busy
   machine; times don't.

The source (arXiv 2511.23440) compares its compiled moment pass with sampling in Pyro.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Literal

import jax

import jaxeff
from experiments import harness as h
from experiments.harness import Found, Report, Row
from experiments.transforms import cost, latency

LIMIT = 1.02  # of the hand-written count
FRESH_TARGET, DRAWN_TARGET = 10, 5  # times faster than sampling
READING_TARGET = 1.0  # seconds
BATCH = {"lenet5": 10, "resnet18-imagenet": 1, "resnet18-cifar": 1}
LABELS = {
    "deterministic": "one deterministic pass", "draw_map": "drawn per call, one by one",
    "draw_vmap": "drawn per call, vmapped", "drawn_map": "drawn before, one by one",
    "drawn_vmap": "drawn before, vmapped", "drawn_unrolled": "drawn before, unrolled",
}  # fmt: skip
Net = Literal["lenet5", "resnet18-imagenet", "resnet18-cifar"]


@dataclass(frozen=True)
class Settings:
    """What is measured, how often."""

    rounds: h.Count  # rounds of each timing
    # networks whose operations XLA counts
    nets: tuple[Net, ...] = ("lenet5", "resnet18-imagenet", "resnet18-cifar")
    batches: tuple[h.Count, ...] = (1, 5, 10)  # batch sizes of the timings


def read(rounds: int) -> Row:
    """Times reading ResNet-18 into a program, nothing cached but what a user's process has."""
    net = cost.subject("resnet18-imagenet", 1)
    times = []
    for _ in range(max(rounds // 5, 3)):
        jax.clear_caches()
        start = time.perf_counter()
        jaxeff.trace(net.f, net.params, net.x)
        times.append(time.perf_counter() - start)
    ms = 1e3 * statistics.median(times)
    return {"net": net.name, "batch": 1, "method": "trace", "ms": ms}


PARTS = (
    h.Part[Settings, tuple[str, str]](
        lambda run: [(net, of) for net in run.settings.nets for of in cost.TRANSFORMS],
        lambda run, task: [cost.compare(cost.subject(task[0], BATCH[task[0]]), task[1])],
    ),
    h.Part[Settings, str](lambda run: ("reading",), lambda run, _: [read(run.settings.rounds)]),
    h.Part[Settings, tuple[str, int]](
        lambda run: [(net, batch) for net in ("lenet5", "mlp") for batch in run.settings.batches],
        lambda run, task: latency.measure(cost.subject(*task), run.settings.rounds),
    ),
    lambda run: Found([], {"samples": latency.SAMPLES, "backend": jax.default_backend()}),
)
COUNTED, TIMED = h.having("transform"), h.having("times_moments")


def speedups(report: Report) -> list[Row]:
    """Selects the moment pass against the fastest sampling, drawn per call and beforehand."""
    found = []
    for (net, batch), rows in h.grouped(TIMED(report), "net", "batch").items():
        times = {row["method"]: row["times_moments"] for row in rows}
        for what, methods, target in (
            ("drawn per call", latency.FRESH, FRESH_TARGET),
            ("drawn beforehand", latency.DRAWN, DRAWN_TARGET),
        ):
            row: Row = {"net": net, "batch": batch, "what": what, "target": target}
            found.append(row | {"faster": min(times[method] for method in methods)})
    return found


CLAIMS = (
    *(
        h.Claim(
            f"{what} of {{transform}} {{net}} over hand-written: at most {{bound}}",
            f"{what}_ratio", h.at_most(LIMIT), of=COUNTED,
        )
        for what in ("flops", "bytes")
    ),
    h.Claim(
        "seconds to read ResNet-18: less than {bound:g}", lambda row: row["ms"] / 1e3,
        h.below(READING_TARGET), of=h.where(method="trace"), needs="default",
    ),
    h.Claim(
        f"{{net}}, batch {{batch}}: moments over {latency.SAMPLES} samples {{what}}: "
        "at least {bound}x",
        "faster", h.at_least("target"), of=speedups, needs="default",
    ),
)  # fmt: skip
TABLES = (
    h.Listing(
        "XLA's count, ours over hand-written",
        {
            "net": "{net} x {batch}", "transform": "transform", **cost.COLUMNS,
            "differ by": "difference",
        },
        COUNTED,
    ),
    h.Listing("milliseconds", of=h.having("method")),
)  # fmt: skip


def excess(report: Report) -> list[Row]:
    """Selects what transforms cost more than hand-written ones, in percent."""
    return [
        row | {what: 100 * (row[f"{what}_ratio"] - 1) for what in ("flops", "bytes")}
        for row in COUNTED(report)
    ]


def sampled(report: Report) -> list[Row]:
    """Selects the timings that are drawn, method by method."""
    return [
        row | {"label": label}
        for method, label in LABELS.items()
        for row in TIMED(report) if row["method"] == method
    ]  # fmt: skip


PLOTS = (
    h.Plot(
        "costs",
        h.Dots(
            "{net}\n{transform}", {"flops": "FLOPs", "bytes": "bytes"}, excess, guides=(0, 2),
            axes={"xlabel": "% more than written by hand (XLA's count; limit dotted)"},
        ),
        size=(7, 4.6),
    ),
    h.Plot(
        "latency",
        h.Bars(
            "batch {batch}", "times_moments", sampled, "{label}",
            f"{{net}}: {latency.SAMPLES} samples over one moment pass",
            guides=(1, FRESH_TARGET, DRAWN_TARGET), then=h.labelled("%.3g"),
            axes={"yscale": "log", "ylabel": "times the moment pass (targets dotted)"},
        ),
        size=(5.6, 4.6),
    ),
)  # fmt: skip

STUDY = h.Study(
    "transforms", __doc__,
    {
        "fast": Settings(7, ("lenet5", "resnet18-imagenet"), (10,)),
        "default": Settings(25),
        "full": Settings(101, batches=(1, 5, 10, 100)),
    },
    PARTS, CLAIMS, PLOTS, TABLES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
