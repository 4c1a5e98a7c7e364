"""What the transforms cost, everything side by side in one run.

    python -m experiments.beyond.transforms

1. FLOPs and bytes, by XLA's own count, of `noisy`, `quantized` and `moments` on LeNet-5 and
   ResNet-18, each beside the same network written by hand;
2. how long reading ResNet-18 takes.

The counts are exact and the same on every machine of this XLA; what reading takes is a time. The
thesis has no such numbers: they are what keeps transforms honest.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Literal

import jax

import jaxeff
from experiments import harness as h
from experiments.beyond.transforms import cost
from experiments.harness import Report, Row

LIMIT = 1.02  # of the hand-written count
READING_TARGET = 1.0  # seconds
BATCH = {"lenet5": 10, "resnet18-imagenet": 1, "resnet18-cifar": 1}
Net = Literal["lenet5", "resnet18-imagenet", "resnet18-cifar"]


@dataclass(frozen=True)
class Settings:
    """What is measured, how often."""

    rounds: h.Count  # how often reading is timed
    # networks whose operations XLA counts
    nets: tuple[Net, ...] = ("lenet5", "resnet18-imagenet", "resnet18-cifar")


def read(rounds: int) -> Row:
    """Times reading ResNet-18 into a program, nothing cached but what a user's process has."""
    net = cost.subject("resnet18-imagenet", 1)
    times = []
    for _ in range(rounds):
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
)
COUNTED = h.having("transform")


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
    h.Listing("milliseconds", of=h.where(method="trace")),
)  # fmt: skip


def excess(report: Report) -> list[Row]:
    """Selects what transforms cost more than hand-written ones, in percent."""
    return [
        row | {what: 100 * (row[f"{what}_ratio"] - 1) for what in ("flops", "bytes")}
        for row in COUNTED(report)
    ]


PLOTS = (
    h.Plot(
        "costs",
        h.Dots(
            "{net}\n{transform}", {"flops": "FLOPs", "bytes": "bytes"}, excess, guides=(0, 2),
            axes={"xlabel": "% more than written by hand (XLA's count; limit dotted)"},
        ),
        size=(7, 4.6),
    ),
)  # fmt: skip

STUDY = h.Study(
    "transforms", __doc__,
    {
        "fast": Settings(3, ("lenet5", "resnet18-imagenet")),
        "default": Settings(5),
        "full": Settings(25),
    },
    PARTS, CLAIMS, PLOTS, TABLES,
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
