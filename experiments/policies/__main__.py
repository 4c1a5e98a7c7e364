"""Bits as arguments: what evaluating many policies costs, and a quantization-aware training step.

    python -m experiments.policies

1. Policies per second, of one program for all of them (`each_policy`) and of a jitted function that
   takes a policy as an argument and is called for each. Neither compiles anything for other bits.
   Rounds are interleaved, so ratios hold on a busy machine; times don't. What the program saves is
   dispatch and the quantization of weights and inputs, which it does once per width; with more
   images the layers themselves take the time, which is the same in both. In few bits, another order
   of sums moves an activation across a rounding now and then; `same` is the share of policies where
   no logit shows it.
2. FLOPs and bytes, by XLA's own count, of a step of gradient descent through fake quantization, by
   each tensor's own range (`int`) and by learned steps (`lsq`), beside the same written by hand.
3. The seconds that `allocate_bits` takes for ResNet-18.

The source searches bits per layer with one compiled model per policy (arXiv 2212.07818).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

import jaxeff
from experiments.harness import Found, Least, Report, Row, Run, Study, Table
from experiments.policies import counts, speed
from experiments.transforms import cost
from jaxeff.compression import BitSensitivity, allocate_bits

LIMIT = 1.15  # of the hand-written count
TARGET = 3.0  # times the throughput of the loop
SECONDS = 5.0  # for an allocation
Net = Literal["mlp", "lenet5", "resnet18-imagenet"]


@dataclass(frozen=True)
class Settings:
    """What is measured, how often.

    Attributes:
        rounds: Rounds of each timing.
        policies: Policies in one program.
        nets: Networks under many policies.
        batches: Images each policy is evaluated on.
        at_once: How many policies a program takes side by side.
        steps: Networks whose training step is counted.
    """

    rounds: Annotated[int, Least(1)] = 7
    policies: Annotated[int, Least(1)] = 1000
    nets: tuple[Net, ...] = ("mlp", "lenet5")
    batches: tuple[Annotated[int, Least(1)], ...] = (1, 10)
    at_once: tuple[Annotated[int, Least(1)], ...] = (1, 10)
    steps: tuple[Net, ...] = ("lenet5", "resnet18-imagenet")


def run(run: Run[Settings]) -> Found:
    """Times, counts; each row is kept."""
    settings = run.settings
    counted = run.each(
        [(net, method) for net in settings.steps for method in counts.METHODS],
        lambda task: [counts.compare(task[0], 8, task[1])],
    )
    timed = run.each(
        [(net, batch) for net in settings.nets for batch in settings.batches],
        lambda task: [speed.measure(*task, settings.policies, settings.rounds, settings.at_once)],
    )
    allocated = run.keep("allocation", lambda: [allocate(of) for of in ("weights", "bops")])
    return Found([*counted, *timed, *allocated])


def allocate(of: str) -> Row:
    """Times an allocation for ResNet-18, weights and activations of 1 to 8 bits each."""
    net = cost.subject("resnet18-cifar", 1)
    found = jaxeff.cost(net.f, net.params, net.x)
    rows = [row for row in found.layers if row.macs]
    shape = (len(rows), 8)
    generator = np.random.default_rng(0)
    widths = np.arange(1, 9)
    damages = [
        10 ** generator.uniform(-3, 1, (shape[0], 1))
        * 4.0**-widths
        * generator.uniform(0.5, 2, shape)
        for _ in range(2)
    ]
    sensitivity = BitSensitivity(tuple(row.site for row in rows), tuple(range(1, 9)), *damages)
    budget = 4 * sum(row.weights for row in rows) if of == "weights" else 16 * found.macs
    start = time.perf_counter()
    allocate_bits(sensitivity, found, budget, of=of)
    return {"budget": of, "sites": len(rows), "seconds": time.perf_counter() - start}


def judge(report: Report) -> None:
    """Holds counts and ratios to the targets; few rounds decide no timing."""
    for row in report.rows:
        if "method" in row:
            for what in ("flops", "bytes"):
                claim = f"{what} of a step of {row['net']}, {row['method']}, over hand-written"
                ratio = row[f"{what}_ratio"]
                report.check(f"{claim}: at most {LIMIT}", None, ratio, ratio <= LIMIT)
        elif "policies" in row:
            of = f"{row['policies']} policies of {row['net']}, batch {row['batch']}"
            traces = row["traces"]
            report.check(f"{of}: traces for other bits", 0, traces, traces == 0)
            ratio = row["ratio"]
            claim = f"{of}: throughput over a loop's, at least {TARGET:g}"
            report.check(claim, None, ratio, ratio >= TARGET, needs="default")
        else:
            seconds = row["seconds"]
            claim = f"seconds to allocate ResNet-18's bits by {row['budget']}: under {SECONDS:g}"
            report.check(claim, None, seconds, seconds < SECONDS, needs="default")


def draw(report: Report) -> dict[str, Figure]:
    """Throughput over that of the loop."""
    timed = [row for row in report.rows if "policies" in row]
    figure, axis = plt.subplots()
    for net in dict.fromkeys(row["net"] for row in timed):
        rows = [row for row in timed if row["net"] == net]
        axis.plot([r["batch"] for r in rows], [r["ratio"] for r in rows], "o-", label=net)
    axis.axhline(TARGET, color="grey", linestyle=":")
    axis.set(xscale="log", xlabel="images", ylabel="policies per second, over a jitted loop's")
    return {"throughput": figure}


def tables(report: Report) -> Sequence[Table]:
    """Throughput, counts and the allocation."""
    timed = [row for row in report.rows if "policies" in row]
    steps = [
        {
            "net": f"{row['net']} x {row['batch']}",
            "method": row["method"],
            "MFLOPs": row["flops"] / 1e6,
            "ratio": row["flops_ratio"],
            "MB": row["bytes"] / 1e6,
            "ratio ": row["bytes_ratio"],
            "losses differ by": row["difference"],
        }
        for row in report.rows
        if "method" in row
    ]
    columns = ("net", "batch", "policies", "loop_us", "at_once", "ratio", "traces", "same")
    return [
        Table.from_rows("microseconds per policy, and throughput over the loop's", timed, columns),
        Table.from_rows("a training step by XLA's count, ours over hand-written", steps),
        Table.from_rows("allocation", [row for row in report.rows if "budget" in row]),
    ]


STUDY = Study(
    "policies", __doc__,
    {
        "fast": Settings(3, 50, batches=(1, 10), at_once=(1,), steps=("lenet5",)),
        "default": Settings(),
        "full": Settings(51, batches=(1, 10, 100), at_once=(1, 10, 100)),
    },
    run, judge, draw, tables,
    differences=("Policies are random; nothing is searched.",),
)  # fmt: skip

if __name__ == "__main__":
    STUDY.main()
