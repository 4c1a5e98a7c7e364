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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import jax

import jaxeff
from experiments.harness import Count, Found, Report, Row, Run, Study, Table
from experiments.transforms import cost, figure, latency

LIMIT = 1.02  # of the hand-written count
FRESH_TARGET, DRAWN_TARGET = 10, 5  # times faster than sampling
READING_TARGET = 1.0  # seconds
BATCH = {"lenet5": 10, "resnet18-imagenet": 1, "resnet18-cifar": 1}
Net = Literal["lenet5", "resnet18-imagenet", "resnet18-cifar"]


@dataclass(frozen=True)
class Settings:
    """What is measured, how often.

    Attributes:
        rounds: Rounds of each timing.
        nets: Networks whose operations XLA counts.
        batches: Batch sizes of the timings.
    """

    rounds: Count
    nets: tuple[Net, ...] = ("lenet5", "resnet18-imagenet", "resnet18-cifar")
    batches: tuple[Count, ...] = (1, 5, 10)


def run(run: Run[Settings]) -> Found:
    """Counts, reads, times; each row is kept."""
    settings = run.settings
    counted = run.each(
        [(net, transform) for net in settings.nets for transform in cost.TRANSFORMS],
        lambda task: [cost.compare(cost.subject(task[0], BATCH[task[0]]), task[1])],
    )
    reading = run.keep("reading", lambda: [read(settings.rounds)])
    timed = run.each(
        [(net, batch) for net in ("lenet5", "mlp") for batch in settings.batches],
        lambda task: latency.measure(cost.subject(*task), settings.rounds),
    )
    samples = {"samples": latency.SAMPLES, "backend": jax.default_backend()}
    return Found([*counted, *reading, *timed], samples)


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


def judge(report: Report) -> None:
    """Holds counts and timings to the targets; few rounds decide no timing."""
    for row in report.rows:
        if "transform" in row:
            for what in ("flops", "bytes"):
                claim = f"{what} of {row['transform']} {row['net']} over hand-written: at most"
                ratio = row[f"{what}_ratio"]
                report.check(f"{claim} {LIMIT}", None, ratio, ratio <= LIMIT)
        elif row["method"] == "trace":
            claim = f"seconds to read ResNet-18: less than {READING_TARGET:g}"
            seconds = row["ms"] / 1e3
            report.check(claim, None, seconds, seconds < READING_TARGET, needs="default")
    timed = [row for row in report.rows if "times_moments" in row]
    for net, batch in dict.fromkeys((row["net"], row["batch"]) for row in timed):
        fresh, drawn = latency.speedups(
            [r for r in timed if (r["net"], r["batch"]) == (net, batch)]
        )
        for what, ours, target in (
            ("drawn per call", fresh, FRESH_TARGET),
            ("drawn beforehand", drawn, DRAWN_TARGET),
        ):
            claim = f"{net}, batch {batch}: moments over {latency.SAMPLES} samples {what}: at least"
            report.check(f"{claim} {target}x", None, ours, ours >= target, needs="default")


def tables(report: Report) -> Sequence[Table]:
    """The counts in short, and the timings."""
    short = [
        {
            "net": f"{row['net']} x {row['batch']}",
            "transform": row["transform"],
            "MFLOPs": row["flops"] / 1e6,
            "ratio": row["flops_ratio"],
            "MB": row["bytes"] / 1e6,
            "ratio ": row["bytes_ratio"],
            "differ by": row["difference"],
        }
        for row in report.rows
        if "transform" in row
    ]
    timed = [row for row in report.rows if "method" in row]
    return [
        Table.from_rows("XLA's count, ours over hand-written", short),
        Table.from_rows("milliseconds", timed),
    ]


STUDY = Study(
    "transforms", __doc__,
    {
        "fast": Settings(7, ("lenet5", "resnet18-imagenet"), (10,)),
        "default": Settings(25),
        "full": Settings(101, batches=(1, 5, 10, 100)),
    },
    (run,), (judge,), (lambda report: figure.draw(report.rows, (FRESH_TARGET, DRAWN_TARGET)),),
    (tables,),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
